/* The conversation with PMI2. A contribution is its length and its bytes, cut into
 * pieces that fit what any implementation takes: values of at most 450 characters (some
 * hang at their own limit), keys of at most 48.
 */
#include "pmi2_task.h"

#include "../wire.h"
#include "base64.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE       336u /* bytes of a value: 448 characters */
#define KEY_ROOM    48u
#define VALUE_ROOM  1100 /* more than any implementation's longest */
#define MOST_PIECES 0x10000u
#define MOST_BYTES  (MOST_PIECES * PIECE - 8) /* of a contribution */

/* One conversation at a time: the launcher's fence counts calls, and knows no groups.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both */
static bool running;
static uint32_t gathers; /* begun; keys of different ones never meet */

/* -- what the thread does -- */

static int failed(ddstore__pmi2_task *t, const char *call, int code)
{
    return ddstore__fail(&t->err, DDSTORE_EFABRIC,
                         "%s failed on rank %d of %d: code %d of PMI2 (%s)", call,
                         t->launch.rank, t->launch.size, code, t->api->path);
}

static int join(ddstore__pmi2_task *t)
{
    int spawned, app;
    if (t->api->Initialized()) /* by this process's own program */
        return ddstore__fail(&t->err, DDSTORE_EUNSUPPORTED,
                             "this program speaks to PMI2 itself: pass rank, size and "
                             "a directory, or an MPI communicator");
    int code = t->api->Init(&spawned, &t->launch.size, &t->launch.rank, &app);
    if (code)
        return failed(t, "PMI2_Init", code);
    if (t->launch.size < 1 || t->launch.rank < 0 || t->launch.rank >= t->launch.size)
        return failed(t, "PMI2_Init: its rank", t->launch.rank);
    code = t->api->Job_GetId(t->launch.job, (int)sizeof(t->launch.job));
    return code ? failed(t, "PMI2_Job_GetId", code) : DDSTORE_OK;
}

static void name_piece(const ddstore__pmi2_task *t, int rank, uint32_t piece,
                       char key[KEY_ROOM])
{
    snprintf(key, KEY_ROOM, "dds-%016" PRIx64 "-%" PRIx32 "-%x-%" PRIx32, t->group,
             t->number, (unsigned)rank, piece);
}

static int put(ddstore__pmi2_task *t)
{
    char key[KEY_ROOM], value[DDSTORE__BASE64_CHARS(PIECE) + 1];
    uint8_t piece[PIECE];
    size_t at = 0, used = 8;
    ddstore__put64(piece, t->bytes);
    /* Of one that is too long the length alone: all ranks refuse it. */
    size_t bytes = t->bytes > MOST_BYTES ? 0 : t->bytes;
    for (uint32_t i = 0; i == 0 || at < bytes; i++, used = 0) {
        size_t n = bytes - at < PIECE - used ? bytes - at : PIECE - used;
        if (n)
            memcpy(piece + used, t->mine + at, n);
        at += n;
        name_piece(t, t->launch.rank, i, key);
        ddstore__base64_encode(piece, used + n, value);
        int code = t->api->KVS_Put(key, value);
        if (code)
            return failed(t, "PMI2_KVS_Put", code);
    }
    return DDSTORE_OK;
}

/* One piece of a rank's; its length in bytes, or an error's code. */
static ptrdiff_t get_piece(ddstore__pmi2_task *t, int rank, uint32_t i,
                           uint8_t piece[PIECE])
{
    char key[KEY_ROOM], value[VALUE_ROOM] = "";
    int length = 0;
    name_piece(t, rank, i, key);
    int code =
        t->api->KVS_Get(t->launch.job, rank, key, value, VALUE_ROOM - 1, &length);
    if (code)
        return ddstore__fail(&t->err, DDSTORE_ECONFLICT,
                             "rank %d has given nothing (code %d of PMI2_KVS_Get): it "
                             "is in another collective call. All ranks make the same "
                             "calls, also of different stores, in the same order",
                             rank, code);
    ptrdiff_t n = ddstore__base64_decode(value, strlen(value), piece, PIECE);
    return n >= 0 ? n
                  : ddstore__fail(&t->err, DDSTORE_EFABRIC,
                                  "PMI2 has changed what rank %d has given", rank);
}

static int get_rank(ddstore__pmi2_task *t, int rank, ddstore__buffer *all)
{
    uint8_t piece[PIECE];
    uint64_t bytes = 0, got = 0;
    for (uint32_t i = 0; i == 0 || got < bytes; i++) {
        ptrdiff_t n = get_piece(t, rank, i, piece), head = i ? 0 : 8;
        if (n < 0)
            return (int)n;
        if (i == 0 && n >= head)
            bytes = ddstore__get64(piece);
        if (bytes > MOST_BYTES)
            return ddstore__fail(&t->err, DDSTORE_EUNSUPPORTED,
                                 "rank %d gives %" PRIu64 " bytes, and PMI2 takes at "
                                 "most %u: meet in a directory (DDSTORE_EXCHANGE=file)",
                                 rank, bytes, MOST_BYTES);
        if (n < head || (i && !n) || got + (uint64_t)(n - head) > bytes)
            return ddstore__fail(&t->err, DDSTORE_EFABRIC,
                                 "PMI2 has changed what rank %d has given", rank);
        ddstore__add_bytes(all, piece + head, (size_t)(n - head));
        got += (uint64_t)(n - head);
    }
    return DDSTORE_OK;
}

/* One fence a gather. A rank that can't put its part goes through it too. */
static int gather(ddstore__pmi2_task *t)
{
    int rc = put(t), code = t->api->KVS_Fence();
    ddstore__buffer all = {0};
    if (code && !rc)
        rc = failed(t, "PMI2_KVS_Fence", code);
    (void)ddstore__extend(&all, 1); /* there is always an address */
    all.bytes = 0;
    for (int r = 0; !rc && r < t->launch.size; r++) {
        rc = get_rank(t, r, &all);
        t->offsets[r + 1] = all.bytes;
    }
    if (!rc && all.failed)
        rc = ddstore__fail(&t->err, DDSTORE_ENOMEM,
                           "no memory for what %d ranks have given", t->launch.size);
    t->data = all.data;
    return rc;
}

static int perform(ddstore__pmi2_task *t)
{
    if (t->what == DDSTORE__PMI2_JOIN)
        return join(t);
    if (t->what == DDSTORE__PMI2_GATHER)
        return gather(t);
    int code = t->api->KVS_Fence();
    return code ? failed(t, "PMI2_KVS_Fence", code) : DDSTORE_OK;
}

static void *run(void *arg)
{
    ddstore__pmi2_task *task = arg;
    task->rc = perform(task);
    pthread_mutex_lock(&lock);
    running = false;
    pthread_mutex_unlock(&lock);
    atomic_store(&task->done, 1);
    ddstore__pmi2_task_release(task);
    return NULL;
}

/* -- what the caller does -- */

/* Takes the turn of this process; without it, 0. */
static bool take_turn(ddstore__pmi2_task *task)
{
    pthread_mutex_lock(&lock);
    bool free = !running;
    if (free) {
        running = true;
        task->number = gathers;
        gathers += task->what == DDSTORE__PMI2_GATHER;
    }
    pthread_mutex_unlock(&lock);
    return free;
}

static int start(ddstore__pmi2_task *task, ddstore_error *err)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    atomic_fetch_add(&task->refs, 1);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    int rc = pthread_create(&thread, &attr, run, task);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (!rc)
        return DDSTORE_OK;
    atomic_fetch_sub(&task->refs, 1);
    pthread_mutex_lock(&lock);
    running = false;
    pthread_mutex_unlock(&lock);
    return ddstore__fail_errno(err, rc, "can't start the thread that asks PMI2");
}

int ddstore__pmi2_task_run(ddstore__pmi2_task *task, int64_t timeout_ns,
                           const atomic_int *closed, const ddstore__watch *watch,
                           ddstore_error *err)
{
    ddstore__pauses pause;
    bool started = false;
    int rc = DDSTORE_OK;
    ddstore__pause_begin(&pause, timeout_ns, closed);
    while (!rc && !atomic_load(&task->done)) {
        if (!started && take_turn(task)) {
            started = true;
            rc = start(task, err);
            continue;
        }
        rc = ddstore__pause(&pause, err);
        if (!rc && watch)
            rc = watch->look(watch->arg, pause.begun_ns, err);
    }
    return rc;
}

ddstore__pmi2_task *ddstore__pmi2_task_new(const ddstore__pmi2_api *api,
                                           enum ddstore__pmi2_what what,
                                           const ddstore__pmi2_launch *launch)
{
    ddstore__pmi2_task *task = calloc(1, sizeof(*task));
    if (!task)
        return NULL;
    task->api = api;
    task->what = what;
    task->launch = *launch;
    atomic_init(&task->refs, 1);
    task->offsets = calloc((size_t)launch->size + 1, sizeof(*task->offsets));
    if (task->offsets)
        return task;
    free(task);
    return NULL;
}

void ddstore__pmi2_task_release(ddstore__pmi2_task *task)
{
    if (!task || atomic_fetch_sub(&task->refs, 1) > 1)
        return;
    free(task->mine);
    free(task->data);
    free(task->offsets);
    free(task);
}

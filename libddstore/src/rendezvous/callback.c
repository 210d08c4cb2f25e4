/* A group that meets through a host program's own allgather of equal pieces. Where that
 * only starts, the wait is here: with a deadline, and a look at those who are missing.
 */
#include "rendezvous.h"

#include <stdio.h>
#include <stdlib.h>

#define ROUND_BYTES (64u << 20) /* gathered at once by all ranks, padding included */
#define PIECE_LEAST (64u << 10)
#define HEAD        32u /* bytes of a gather's first message */
#define GATHERV     1u  /* its kind here; others: rendezvous.h */

struct callback_comm {
    ddstore_comm base;
    ddstore_comm_callbacks host;
    int64_t timeout_ns;
    bool given_up;  /* a gather was started and never ended: its memory is kept */
    uint8_t *heads; /* HEAD bytes of this rank, then of all: there is always memory */
    ddstore__gather_head *gathered; /* the same, decoded */
};

/* Memory that the host program may write at any time. */
struct kept {
    struct kept *next;
    void *memory;
};

/* What one allgatherv needs beside the result. */
struct plan {
    uint64_t piece;      /* bytes a rank and round */
    uint64_t largest;    /* contribution */
    uint8_t *mine, *all; /* one piece, and one a rank */
    uint8_t *data;
};

static int failed(struct callback_comm *c, int code, ddstore_error *err)
{
    char words[512] = "";
    if (c->host.why)
        c->host.why(c->host.arg, words, sizeof(words));
    return ddstore__fail(err, DDSTORE_EFABRIC,
                         "a collective of the host program failed on rank %d of %d (it "
                         "returned %d)%s%s",
                         c->base.rank, c->base.size, code, *words ? ": " : "", words);
}

static int timed_out(struct callback_comm *c, ddstore_error *err)
{
    char missing[512] = "";
    if (c->base.watch)
        c->base.watch->missing(c->base.watch->arg, missing, sizeof(missing));
    return ddstore__fail(
        err, DDSTORE_ETIMEDOUT,
        "not all %d ranks came within %g s (DDSTORE_HANDSHAKE_TIMEOUT_S): %s%s",
        c->base.size, (double)c->timeout_ns / 1e9, *missing ? "missing " : "",
        *missing ? missing : "a rank is absent or is in another call");
}

int ddstore__callback_wait(ddstore_comm *comm, ddstore_error *err)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    const ddstore__watch *watch = comm->watch;
    ddstore__pauses pause;
    int done;
    ddstore__pause_begin(&pause, c->timeout_ns, &comm->closed);
    while (!(done = c->host.test(c->host.arg))) {
        int rc = ddstore__pause(&pause, err);
        if (!rc && watch)
            rc = watch->look(watch->arg, pause.begun_ns, err);
        if (!rc)
            continue;
        c->given_up = true;
        return rc == DDSTORE_ETIMEDOUT ? timed_out(c, err) : rc;
    }
    c->given_up |= done < 0;
    return done > 0 ? DDSTORE_OK : failed(c, done, err);
}

int ddstore__callback_gather(ddstore_comm *comm, const void *mine, size_t bytes,
                             void *all, ddstore_error *err)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    if (atomic_load(&comm->closed))
        return ddstore__fail(err, DDSTORE_ECLOSED, "the communicator was closed");
    int code = c->host.allgather(c->host.arg, mine, bytes, all);
    c->given_up |= code && c->host.test; /* it may have started all the same */
    if (code)
        return failed(c, code, err);
    return c->host.test ? ddstore__callback_wait(comm, err) : DDSTORE_OK;
}

/* All ranks have the same heads, so all find the same. */
static int check_kinds(ddstore_comm *comm, const ddstore__gather_head *all,
                       ddstore_error *err)
{
    static const char *const names[] = {"an exchange", "add", "an epoch call",
                                        "get_batch", "free"};
    int other = 0;
    for (int r = 0; r < comm->size; r++)
        if (all[r].kind != all[0].kind || all[r].call != all[0].call)
            other = other ? other : r;
    if (!other)
        return DDSTORE_OK;
    comm->in_step = true;
    for (int r = 0; r < comm->size; r++)
        if (all[r].call == DDSTORE__CALL_FREE && comm->call != DDSTORE__CALL_FREE)
            return ddstore__fail(err, DDSTORE_ECLOSED,
                                 "a collective call can't end: rank %d frees its store",
                                 r);
    const char *name[2];
    for (int i = 0; i < 2; i++) {
        unsigned call = all[i ? other : 0].call;
        name[i] = call < DDSTORE__COUNT(names) ? names[call] : "an unknown call";
    }
    return ddstore__fail(err, DDSTORE_ECONFLICT,
                         "rank %d and rank 0 are in different collective calls (%s and "
                         "%s): all ranks make the same calls in the same order",
                         other, name[1], name[0]);
}

int ddstore__callback_enter(ddstore_comm *comm, const ddstore__gather_head *mine,
                            ddstore__gather_head *all, ddstore_error *err)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    uint8_t *own = c->heads, *at = c->heads + HEAD;
    ddstore__put32(own, mine->kind | (uint32_t)comm->call << 16);
    ddstore__put32(own + 4, (uint32_t)mine->code);
    for (size_t i = 0; i < 3; i++)
        ddstore__put64(own + 8 + 8 * i, mine->word[i]);
    int rc = ddstore__callback_gather(comm, own, HEAD, at, err);
    for (int r = 0; !rc && r < comm->size; r++, at += HEAD) {
        uint32_t what = ddstore__get32(at);
        all[r] = (ddstore__gather_head){.kind = (uint16_t)what,
                                        .call = (uint16_t)(what >> 16),
                                        .code = (int32_t)ddstore__get32(at + 4)};
        for (size_t i = 0; i < 3; i++)
            all[r].word[i] = ddstore__get64(at + 8 + 8 * i);
    }
    return rc ? rc : check_kinds(comm, all, err);
}

/* Fills offsets[0..size]; all ranks come to the same result. */
static int gather_sizes(struct callback_comm *c, size_t bytes, uint64_t *offsets,
                        uint64_t *largest, ddstore_error *err)
{
    ddstore__gather_head mine = {.kind = GATHERV, .word = {bytes}};
    int rc = ddstore__callback_enter(&c->base, &mine, c->gathered, err);
    if (rc)
        return rc;
    *largest = 0;
    offsets[0] = 0;
    for (int r = 0; r < c->base.size; r++) {
        uint64_t n = c->gathered[r].word[0];
        if (n > PTRDIFF_MAX - offsets[r]) {
            c->base.in_step = true;
            return ddstore__fail(
                err, DDSTORE_EINVAL,
                "the contributions up to rank %d exceed what memory can address", r);
        }
        offsets[r + 1] = offsets[r] + n;
        *largest = n > *largest ? n : *largest;
    }
    return DDSTORE_OK;
}

void ddstore__callback_give_up(ddstore_comm *comm)
{
    ((struct callback_comm *)comm)->given_up = true;
}

void ddstore__callback_free(const ddstore_comm *comm, void *memory)
{
    static _Atomic(struct kept *) kept; /* so that it isn't lost, only never freed */
    struct kept *k;
    if (!((const struct callback_comm *)comm)->given_up) {
        free(memory);
    } else if (memory && (k = malloc(sizeof(*k)))) {
        *k = (struct kept){atomic_load(&kept), memory};
        while (!atomic_compare_exchange_weak(&kept, &k->next, k))
            ;
    }
}

static void free_plan(const struct callback_comm *c, struct plan *plan)
{
    ddstore__callback_free(&c->base, plan->mine);
    ddstore__callback_free(&c->base, plan->all);
    ddstore__callback_free(&c->base, plan->data);
}

/* All ranks learn whether all of them have the memory: nobody leaves the others alone.
 */
static int allocate(struct callback_comm *c, uint64_t total, struct plan *plan,
                    ddstore_error *err)
{
    uint64_t size = (uint64_t)c->base.size;
    uint64_t piece = ROUND_BYTES / size;
    piece = piece < PIECE_LEAST ? PIECE_LEAST : piece;
    plan->piece = piece < plan->largest ? piece : plan->largest;
    plan->mine = malloc(plan->piece);
    plan->all = malloc(plan->piece * size);
    plan->data = malloc(total);
    c->heads[0] = !plan->mine || !plan->all || !plan->data; /* lacking */
    int rc = ddstore__callback_gather(&c->base, c->heads, 1, c->heads + HEAD, err);
    if (rc)
        return rc;
    for (int r = 0; r < c->base.size; r++)
        if (c->heads[HEAD + (size_t)r]) {
            c->base.in_step = true;
            return ddstore__fail(
                err, DDSTORE_ENOMEM,
                "rank %d has no memory for the %llu bytes of all %d ranks", r,
                (unsigned long long)total, c->base.size);
        }
    return DDSTORE_OK;
}

static int gather_rounds(struct callback_comm *c, const uint8_t *mine, size_t bytes,
                         const uint64_t *offsets, struct plan *plan, ddstore_error *err)
{
    for (uint64_t at = 0; at < plan->largest; at += plan->piece) {
        uint64_t left = plan->largest - at;
        uint64_t piece = left < plan->piece ? left : plan->piece;
        uint64_t own = bytes > at ? bytes - at : 0;
        own = own < piece ? own : piece;
        if (own)
            memcpy(plan->mine, mine + at, own);
        memset(plan->mine + own, 0, piece - own);
        int rc = ddstore__callback_gather(&c->base, plan->mine, piece, plan->all, err);
        if (rc)
            return rc;
        for (int r = 0; r < c->base.size; r++) {
            uint64_t n = offsets[r + 1] - offsets[r];
            n = n > at ? n - at : 0;
            n = n < piece ? n : piece;
            if (n)
                memcpy(plan->data + offsets[r] + at, plan->all + (uint64_t)r * piece,
                       n);
        }
    }
    return DDSTORE_OK;
}

static int callback_allgatherv(ddstore_comm *comm, const void *mine, size_t bytes,
                               void **data, uint64_t *offsets, ddstore_error *err)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    struct plan plan = {0};
    int rc = gather_sizes(c, bytes, offsets, &plan.largest, err);
    if (!rc && plan.largest == 0) {
        *data = malloc(1);
        return *data ? DDSTORE_OK
                     : ddstore__fail(err, DDSTORE_ENOMEM,
                                     "no memory for an empty result");
    }
    if (!rc)
        rc = allocate(c, offsets[comm->size], &plan, err);
    if (!rc)
        rc = gather_rounds(c, mine, bytes, offsets, &plan, err);
    if (!rc) {
        *data = plan.data;
        plan.data = NULL;
    }
    free_plan(c, &plan);
    return rc;
}

static void callback_close(ddstore_comm *comm)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    if (c->host.close && comm->fork_generation == ddstore__fork_generation)
        c->host.close(c->host.arg);
    ddstore__callback_free(comm, c->heads);
    free(c->gathered);
    free(c);
}

static const ddstore__rendezvous_ops ops = {
    .name = "callback",
    .ends_by_timeout = true,
    .allgatherv = callback_allgatherv,
    .close = callback_close,
};

int ddstore_comm_open_callbacks(const ddstore_comm_callbacks *how, ddstore_comm **out,
                                ddstore_error *err)
{
    if (!out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "no place for the communicator is given");
    *out = NULL;
    if (!how || !how->allgather)
        return ddstore__fail(err, DDSTORE_EINVAL, "no allgather function is given");
    if (how->size < 1 || how->rank < 0 || how->rank >= how->size)
        return ddstore__fail(err, DDSTORE_EINVAL, "rank %d is not one of %d ranks",
                             how->rank, how->size);
    if (!(how->timeout_s >= 0))
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "the time-out must be a number of seconds, 0 for the "
                             "default; it is %g",
                             how->timeout_s);
    struct callback_comm *c = calloc(1, sizeof(*c));
    uint8_t *heads = calloc((size_t)how->size + 1, HEAD);
    ddstore__gather_head *gathered = calloc((size_t)how->size, sizeof(*gathered));
    if (!c || !heads || !gathered) {
        free(c);
        free(heads);
        free(gathered);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a communicator");
    }
    c->base.ops = &ops;
    c->base.rank = how->rank;
    c->base.size = how->size;
    c->base.fork_generation = ddstore__fork_generation;
    c->host = *how;
    c->timeout_ns = ddstore__comm_timeout_ns(how->timeout_s);
    c->heads = heads;
    c->gathered = gathered;
    *out = &c->base;
    return DDSTORE_OK;
}

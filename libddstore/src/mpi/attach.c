/* A store's communicator in the plugin's hands: which MPI it is of, who may call it,
 * its collectives, and how it ends. */
#include "mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t serial = PTHREAD_MUTEX_INITIALIZER; /* below MULTIPLE */
static _Thread_local bool locked;

static int fail(ddstore_error *err, int code, const char *text)
{
    if (err) {
        err->code = code;
        err->late = 0;
        snprintf(err->message, sizeof(err->message), "%s", text);
    }
    return code;
}

const char *ddstore_mpi_library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    int bytes = 0;
    pthread_mutex_lock(&once);
    if (!*text) {
        (void)MPI_Get_library_version(text, &bytes);
        text[strcspn(text, "\r\n")] = '\0';
    }
    pthread_mutex_unlock(&once);
    return text;
}

#define TEXT_OF(x)  #x
#define TEXT_OF2(x) TEXT_OF(x)

const char *ddstore_mpi_built_for(void)
{
#if defined(OPEN_MPI)
    return "Open MPI " TEXT_OF2(OMPI_MAJOR_VERSION) "." TEXT_OF2(
        OMPI_MINOR_VERSION) "." TEXT_OF2(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    return "MPICH " MPICH_VERSION;
#else
    return "an MPI of version " TEXT_OF2(MPI_VERSION);
#endif
}

/* Its name and version alone: "Open MPI v4.1.4", "MPICH 4.0.2". */
static const char *short_name(void)
{
    static char name[64];
    char first[32] = "", second[32] = "", third[32] = "";
    if (*name ||
        sscanf(ddstore_mpi_library(), "%31s %31s %31[^, \t]", first, second, third) < 2)
        return name;
    const char *middle = strcmp(second, "Version:") == 0 ? "" : second;
    snprintf(name, sizeof(name), "%s%s%s %s", first, *middle ? " " : "", middle, third);
    return name;
}

int ddstore__mpi_enter(ddstore_error *err)
{
    int begun = 0, ended = 0, level = 0;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&ended);
    if (!begun || ended)
        return fail(err, DDSTORE_ECLOSED,
                    ended ? "MPI was finalized" : "MPI was not initialized");
    (void)MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
        pthread_mutex_lock(&serial);
        locked = true;
    }
    return DDSTORE_OK;
}

void ddstore__mpi_leave(void)
{
    if (!locked)
        return;
    locked = false;
    pthread_mutex_unlock(&serial);
}

static void words_of(int code, char text[MPI_MAX_ERROR_STRING])
{
    int bytes = 0;
    *text = '\0';
    (void)MPI_Error_string(code, text, &bytes);
}

int ddstore__mpi_fail(ddstore_error *err, int code, const char *what,
                      const char *advice)
{
    char words[MPI_MAX_ERROR_STRING], text[MPI_MAX_ERROR_STRING + 512];
    words_of(code, words);
    snprintf(text, sizeof(text), "%s failed: %s (%.100s)%s", what, words, short_name(),
             advice);
    return fail(err, DDSTORE_EFABRIC, text);
}

/* -- collectives -- */

static int begun(ddstore_mpi *mpi, int rc)
{
    ddstore__mpi_leave();
    mpi->failed = rc;
    return rc == MPI_SUCCESS ? 0 : -1;
}

static int start_allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    ddstore_mpi *mpi = arg;
    if (bytes > INT_MAX || ddstore__mpi_enter(NULL))
        return -1;
    return begun(mpi, MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes,
                                     MPI_BYTE, mpi->comm, &mpi->pending));
}

static int start_exchange(void *arg, const void *from, const int *from_bytes,
                          const int *from_at, void *to, const int *to_bytes,
                          const int *to_at)
{
    ddstore_mpi *mpi = arg;
    if (ddstore__mpi_enter(NULL))
        return -1;
    return begun(mpi, MPI_Ialltoallv(from, from_bytes, from_at, MPI_BYTE, to, to_bytes,
                                     to_at, MPI_BYTE, mpi->comm, &mpi->pending));
}

static int test(void *arg)
{
    ddstore_mpi *mpi = arg;
    int done = 0;
    if (ddstore__mpi_enter(NULL))
        return -1;
    int rc = MPI_Test(&mpi->pending, &done, MPI_STATUS_IGNORE);
    return begun(mpi, rc) ? -1 : done != 0;
}

static void why(void *arg, char *text, size_t bytes)
{
    ddstore_mpi *mpi = arg;
    ddstore_error err;
    if (ddstore__mpi_enter(&err)) {
        snprintf(text, bytes, "%s", err.message);
        return;
    }
    ddstore__mpi_leave();
    char words[MPI_MAX_ERROR_STRING];
    words_of(mpi->failed, words);
    snprintf(text, bytes, "%s", words);
}

/* -- the end of MPI -- */

#define MEET_S 5 /* for the others to come too */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* groups */
static ddstore_mpi *groups;
static int keyval = MPI_KEYVAL_INVALID;

/* Whether all ranks of the group have come here, and none has given up a call of it:
 * MPI_Win_free would wait for ever. It stands on a communicator of its own, since on
 * the group's a rank may still wait for another call. */
static bool all_fit(ddstore_mpi *mpi)
{
    int done = 0;
    struct timespec now, pause = {.tv_nsec = 100000};
    MPI_Request met;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t end = now.tv_sec + MEET_S;
    mpi->fit = mpi->pending == MPI_REQUEST_NULL && !ddstore__mpi_windows_busy(mpi);
    mpi->kept = true; /* unless they meet */
    if (MPI_Iallreduce(&mpi->fit, &mpi->all_fit, 1, MPI_INT, MPI_MIN, mpi->end, &met) !=
        MPI_SUCCESS)
        return false;
    while (!done && now.tv_sec < end) {
        if (MPI_Test(&met, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (!done)
            (void)!nanosleep(&pause, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
    mpi->kept = !done || !mpi->all_fit;
    return !mpi->kept;
}

/* Called by MPI_Finalize, while MPI still works: some libraries fail there over windows
 * that were not freed. */
static int at_finalize(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    pthread_mutex_lock(&lock);
    for (ddstore_mpi *m = groups; m; m = m->next)
        if (!m->kept && m->end != MPI_COMM_NULL && all_fit(m))
            ddstore__mpi_windows_free(m);
    pthread_mutex_unlock(&lock);
    return MPI_SUCCESS;
}

static void enter_group(ddstore_mpi *mpi)
{
    ddstore_mpi **at = &groups;
    pthread_mutex_lock(&lock);
    if (keyval == MPI_KEYVAL_INVALID &&
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &keyval, NULL) ==
            MPI_SUCCESS)
        (void)MPI_Comm_set_attr(MPI_COMM_SELF, keyval, NULL);
    while (*at)
        at = &(*at)->next;
    *at = mpi;
    pthread_mutex_unlock(&lock);
}

static void leave_group(ddstore_mpi *mpi)
{
    pthread_mutex_lock(&lock);
    for (ddstore_mpi **at = &groups; *at; at = &(*at)->next)
        if (*at == mpi) {
            *at = mpi->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* -- a store's communicator -- */

int ddstore_mpi_attach(const void *comm, ddstore_mpi **out, ddstore_error *err)
{
    *out = NULL;
    int rc = ddstore__mpi_enter(err);
    if (rc)
        return rc;
    ddstore_mpi *mpi = calloc(1, sizeof(*mpi));
    if (!mpi) {
        ddstore__mpi_leave();
        return fail(err, DDSTORE_ENOMEM, "no memory for a communicator");
    }
    mpi->comm = *(const MPI_Comm *)comm;
    mpi->end = MPI_COMM_NULL;
    mpi->pending = MPI_REQUEST_NULL;
    mpi->last = &mpi->windows;
    int code = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(mpi->comm, &mpi->rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(mpi->comm, &mpi->size);
    if (code == MPI_SUCCESS)
        enter_group(mpi);
    ddstore__mpi_leave();
    if (code != MPI_SUCCESS) {
        free(mpi);
        return ddstore__mpi_fail(err, code, "MPI_Comm_set_errhandler", "");
    }
    *out = mpi;
    return DDSTORE_OK;
}

void ddstore_mpi_describe(ddstore_mpi *mpi, ddstore_mpi_calls *out)
{
    *out = (ddstore_mpi_calls){
        .struct_bytes = sizeof(*out),
        .comm = {.rank = mpi->rank,
                 .size = mpi->size,
                 .allgather = start_allgather,
                 .test = test,
                 .why = why,
                 .arg = mpi},
        .library = short_name(),
        .exchange = start_exchange,
        .window_open = ddstore__mpi_window_open,
        .window_sync = ddstore__mpi_window_sync,
        .read_begin = ddstore__mpi_read_begin,
        .read_test = ddstore__mpi_read_test,
    };
}

/* Whether windows and communicators are freed. false: they are kept for ever. */
static bool free_together(ddstore_mpi *mpi)
{
    bool good = mpi->end == MPI_COMM_NULL ? mpi->pending == MPI_REQUEST_NULL
                                          : !mpi->kept && all_fit(mpi);
    if (!good) {
        mpi->kept = true;
        return false;
    }
    ddstore__mpi_windows_free(mpi);
    if (mpi->end != MPI_COMM_NULL)
        (void)MPI_Comm_free(&mpi->end);
    (void)MPI_Comm_free(&mpi->comm);
    return true;
}

void ddstore_mpi_release(ddstore_mpi *mpi)
{
    ddstore_error err;
    if (!mpi)
        return;
    if (ddstore__mpi_enter(&err) == DDSTORE_OK) { /* else MPI was finalized */
        bool freed = free_together(mpi);
        ddstore__mpi_leave();
        if (!freed)
            return;
    }
    leave_group(mpi);
    for (window *w = mpi->windows, *next; w; w = next) {
        next = w->next;
        w->drop(w->keep);
        free(w);
    }
    free(mpi);
}

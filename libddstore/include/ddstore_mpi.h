/*
 * libddstore over MPI. libddstore.so links no MPI: libddstore_mpi.so, built with the
 * site's MPI compiler, hands it the functions below. A C program includes mpi.h first,
 * links both (-lddstore_mpi -lddstore) and calls ddstore_open_mpi.
 *
 * Method 0 reads rows of other hosts through MPI windows and exchanges batches
 * collectively; methods 1 and 2 use the communicator only to meet.
 */
#ifndef DDSTORE_MPI_H
#define DDSTORE_MPI_H

#include "ddstore.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- in libddstore.so --------------------------------------------------------------
 */

/* One read of a window under way; its fields are the plugin's, but for turn: where
 * read_begin returns 1, how many reads of the window there have been. */
typedef struct ddstore_mpi_read {
    void *window;
    int rank;
    unsigned turn;
    uint64_t opaque[2];
} ddstore_mpi_read;

/* What a store of method 0 asks of MPI; `arg` is comm.arg. None of them but window_open
 * waits for another rank. Failures are filled into err. */
typedef struct ddstore_mpi_calls {
    size_t struct_bytes; /* sizeof(ddstore_mpi_calls) */
    ddstore_comm_callbacks comm;
    const char *library; /* e.g. "Open MPI v4.1.4"; lives as long as the process */

    /* Starts an exchange: from_bytes[r] bytes at from + from_at[r] go to rank r, and
     * to_bytes[r] bytes of rank r come to to + to_at[r]. comm.test tells when it is
     * done; until then all these arrays stay. Collective. */
    int (*exchange)(void *arg, const void *from, const int *from_bytes,
                    const int *from_at, void *to, const int *to_bytes,
                    const int *to_at);

    /* Exposes memory to all ranks. The window lasts until ddstore_mpi_release, which
     * then calls drop(keep), also where this call failed. Collective. */
    int (*window_open)(void *arg, void *base, uint64_t bytes, void *keep,
                       void (*drop)(void *keep), void **window, ddstore_error *err);
    /* Makes what this process wrote to its own memory visible to the others' reads. */
    int (*window_sync)(void *arg, void *window, ddstore_error *err);

    /* Starts to read at most 1 GiB of a rank's window. 1: not now, another thread reads
     * there. On 0, read_test follows until it returns something else than 0. */
    int (*read_begin)(void *arg, void *window, int rank, uint64_t offset,
                      uint64_t bytes, void *dst, ddstore_mpi_read *read,
                      ddstore_error *err);
    /* 1: the bytes are there; 0: not yet. */
    int (*read_test)(void *arg, ddstore_mpi_read *read, ddstore_error *err);
} ddstore_mpi_calls;

/* Opens a store of method 0 (options->method). Collective. Close with ddstore_close,
 * which is local, before ddstore_mpi_release. */
DDSTORE_API int ddstore_open_mpi_calls(const ddstore_mpi_calls *calls,
                                       const ddstore_options *options, ddstore **out,
                                       ddstore_error *err);

/* ---- in libddstore_mpi.so ----------------------------------------------------------
 */

/* A communicator that serves one store. */
typedef struct ddstore_mpi ddstore_mpi;

/* The MPI library that the plugin runs with, as MPI_Get_library_version says, without
 * what follows its first line. Any thread, also before MPI_Init. */
DDSTORE_API const char *ddstore_mpi_library(void);

/* The MPI that it was compiled for, e.g. "Open MPI 4.1.4". Calls no MPI: where the
 * process runs another one, no other function may be called. Any thread. */
DDSTORE_API const char *ddstore_mpi_built_for(void);

/* Takes over *(const MPI_Comm *)comm, which must be a duplicate of the store's own.
 * Errors of it are returned from then on. Local. */
DDSTORE_API int ddstore_mpi_attach(const void *comm, ddstore_mpi **out,
                                   ddstore_error *err);
DDSTORE_API void ddstore_mpi_describe(ddstore_mpi *mpi, ddstore_mpi_calls *out);

/* Frees the windows, their memory and the communicator; its store must be closed.
 * Collective; after MPI_Finalize, local. Where a rank doesn't come within seconds, or a
 * call of the store was given up, all is kept until the process ends. NULL does
 * nothing.
 */
DDSTORE_API void ddstore_mpi_release(ddstore_mpi *mpi);

/* ---- for C programs that include mpi.h ---------------------------------------------
 */

#ifdef MPI_VERSION

/* Opens a store over a duplicate of comm, with options->method 0, 1 or 2. Collective.
 * Close with ddstore_close_mpi. */
static inline int ddstore_open_mpi(MPI_Comm comm, const ddstore_options *options,
                                   ddstore_mpi **mpi, ddstore **out, ddstore_error *err)
{
    static const char failed[] = "MPI_Comm_dup failed";
    MPI_Comm own;
    ddstore_mpi_calls calls;
    ddstore_comm *meeting = NULL;
    *mpi = NULL;
    *out = NULL;
    if (MPI_Comm_dup(comm, &own) != MPI_SUCCESS) {
        if (err) {
            err->code = DDSTORE_EFABRIC;
            err->late = 0;
            for (size_t i = 0; i < sizeof(failed); i++)
                err->message[i] = failed[i];
        }
        return DDSTORE_EFABRIC;
    }
    int rc = ddstore_mpi_attach(&own, mpi, err);
    if (rc) {
        (void)MPI_Comm_free(&own);
        return rc;
    }
    ddstore_mpi_describe(*mpi, &calls);
    if (options->method == 0) {
        rc = ddstore_open_mpi_calls(&calls, options, out, err);
    } else {
        rc = ddstore_comm_open_callbacks(&calls.comm, &meeting, err);
        if (!rc)
            rc = ddstore_open(meeting, options, out, err);
    }
    if (rc) {
        ddstore_mpi_release(*mpi);
        *mpi = NULL;
    }
    return rc;
}

/* ddstore_close, and what belongs to it. Collective, in the same order on all ranks. */
static inline void ddstore_close_mpi(ddstore *store, ddstore_mpi *mpi)
{
    ddstore_error unwanted;
    if (store)
        (void)ddstore_meet_to_free(store, &unwanted);
    ddstore_close(store);
    ddstore_mpi_release(mpi);
}

#endif /* MPI_VERSION */

#ifdef __cplusplus
}
#endif
#endif

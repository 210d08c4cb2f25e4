/* The MPI plugin: what its files share. It calls nothing of libddstore. */
#ifndef DDSTORE_MPI_INTERNAL_H
#define DDSTORE_MPI_INTERNAL_H

#include "ddstore_mpi.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct window {
    struct window *next; /* in order of creation */
    MPI_Win win;         /* MPI_WIN_NULL: it could not be made */
    atomic_int busy;     /* a read of some thread holds a lock of the window */
    atomic_uint turn;    /* how many reads there have been */
    void *keep;
    void (*drop)(void *keep);
} window;

struct ddstore_mpi {
    ddstore_mpi *next; /* of all, in order of creation */
    MPI_Comm comm;
    MPI_Comm end;     /* for the meeting before its end; with the first window */
    int fit, all_fit; /* of that meeting: to be freed */
    bool kept;        /* it can't be freed, ever */
    int rank, size;
    MPI_Request pending; /* of the collective under way */
    int failed;          /* MPI's code of the last failure of a collective */
    window *windows, **last;
};

/* Before each call of MPI: whether it can be called now. On 0, leave() follows. A
 * library below MPI_THREAD_MULTIPLE sees one of our calls at a time. Below
 * MPI_THREAD_SERIALIZED the standard allows calls of the main thread only; libraries
 * bear those of others, as long as the program makes none beside them. */
int ddstore__mpi_enter(ddstore_error *err);
void ddstore__mpi_leave(void);

/* Fills err with "WHAT failed: " and MPI's words; DDSTORE_EFABRIC. */
int ddstore__mpi_fail(ddstore_error *err, int code, const char *what,
                      const char *advice);

int ddstore__mpi_window_open(void *arg, void *base, uint64_t bytes, void *keep,
                             void (*drop)(void *keep), void **out, ddstore_error *err);
int ddstore__mpi_window_sync(void *arg, void *window, ddstore_error *err);
int ddstore__mpi_read_begin(void *arg, void *window, int rank, uint64_t offset,
                            uint64_t bytes, void *dst, ddstore_mpi_read *read,
                            ddstore_error *err);
int ddstore__mpi_read_test(void *arg, ddstore_mpi_read *read, ddstore_error *err);
void ddstore__mpi_windows_free(ddstore_mpi *mpi);
/* Whether a read was given up, so that MPI may still write its destination. */
bool ddstore__mpi_windows_busy(const ddstore_mpi *mpi);

#endif

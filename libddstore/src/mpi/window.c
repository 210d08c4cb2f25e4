/* Windows over segments: a read locks its target itself and holds no epoch. */
#include "mpi.h"

#include <stdlib.h>
#include <string.h>

#define NO_WINDOW                                                                      \
    ": MPI offers no one-sided path between these hosts; set OMPI_MCA_osc=ucx (Open "  \
    "MPI), or use method=1"

int ddstore__mpi_window_open(void *arg, void *base, uint64_t bytes, void *keep,
                             void (*drop)(void *keep), void **out, ddstore_error *err)
{
    ddstore_mpi *mpi = arg;
    MPI_Info info = MPI_INFO_NULL;
    window *w = calloc(1, sizeof(*w));
    window *spare = w ? w : &(window){.win = MPI_WIN_NULL};
    *spare = (window){.win = MPI_WIN_NULL, .keep = keep, .drop = drop};
    int rc = ddstore__mpi_enter(err);
    if (rc) {
        free(w);
        drop(keep);
        return rc;
    }
    /* Entered without memory too, since the others do. */
    int code =
        mpi->end == MPI_COMM_NULL ? MPI_Comm_dup(mpi->comm, &mpi->end) : MPI_SUCCESS;
    if (code == MPI_SUCCESS)
        code = MPI_Info_create(&info);
    if (code == MPI_SUCCESS)
        code = MPI_Info_set(info, "same_disp_unit", "true");
    int made = MPI_Win_create(base, (MPI_Aint)bytes, 1, info, mpi->comm, &spare->win);
    if (made != MPI_SUCCESS)
        spare->win = MPI_WIN_NULL;
    else
        (void)MPI_Win_set_errhandler(spare->win, MPI_ERRORS_RETURN);
    if (info != MPI_INFO_NULL)
        (void)MPI_Info_free(&info);
    ddstore__mpi_leave();
    if (w) {
        *mpi->last = w;
        mpi->last = &w->next;
        *out = w;
    }
    if (made != MPI_SUCCESS)
        return ddstore__mpi_fail(err, made, "MPI_Win_create", NO_WINDOW);
    if (code != MPI_SUCCESS || !w)
        return ddstore__mpi_fail(err, w ? code : MPI_ERR_NO_MEM, "MPI_Info_create", "");
    return DDSTORE_OK;
}

int ddstore__mpi_window_sync(void *arg, void *at, ddstore_error *err)
{
    ddstore_mpi *mpi = arg;
    window *w = at;
    int rc = ddstore__mpi_enter(err);
    if (rc)
        return rc;
    int code = MPI_Win_lock(MPI_LOCK_SHARED, mpi->rank, MPI_MODE_NOCHECK, w->win);
    if (code == MPI_SUCCESS)
        code = MPI_Win_sync(w->win);
    if (code == MPI_SUCCESS)
        code = MPI_Win_unlock(mpi->rank, w->win);
    ddstore__mpi_leave();
    return code == MPI_SUCCESS ? DDSTORE_OK
                               : ddstore__mpi_fail(err, code, "MPI_Win_sync", "");
}

/* -- reads: opaque[0] holds the request -- */

static int read_failed(window *w, int rank, int code, ddstore_error *err)
{
    (void)MPI_Win_unlock(rank, w->win);
    atomic_store_explicit(&w->busy, 0, memory_order_release);
    ddstore__mpi_leave();
    return ddstore__mpi_fail(err, code, "MPI_Rget", "");
}

int ddstore__mpi_read_begin(void *arg, void *at, int rank, uint64_t offset,
                            uint64_t bytes, void *dst, ddstore_mpi_read *read,
                            ddstore_error *err)
{
    (void)arg;
    window *w = at;
    MPI_Request request = MPI_REQUEST_NULL;
    _Static_assert(sizeof(request) <= sizeof(read->opaque), "a request must fit");
    if (atomic_exchange_explicit(&w->busy, 1, memory_order_acquire)) {
        read->turn = atomic_load(&w->turn);
        return 1;
    }
    atomic_fetch_add(&w->turn, 1);
    int rc = ddstore__mpi_enter(err);
    if (rc) {
        atomic_store_explicit(&w->busy, 0, memory_order_release);
        return rc;
    }
    /* Shared locks alone are ever taken, so none of them conflicts. */
    int code = MPI_Win_lock(MPI_LOCK_SHARED, rank, MPI_MODE_NOCHECK, w->win);
    if (code == MPI_SUCCESS)
        code = MPI_Rget(dst, (int)bytes, MPI_BYTE, rank, (MPI_Aint)offset, (int)bytes,
                        MPI_BYTE, w->win, &request);
    if (code != MPI_SUCCESS)
        return read_failed(w, rank, code, err);
    ddstore__mpi_leave();
    *read = (ddstore_mpi_read){.window = w, .rank = rank};
    memcpy(read->opaque, &request, sizeof(request));
    return 0;
}

int ddstore__mpi_read_test(void *arg, ddstore_mpi_read *read, ddstore_error *err)
{
    (void)arg;
    window *w = read->window;
    MPI_Request request;
    int done = 0, rc = ddstore__mpi_enter(err);
    if (rc)
        return rc;
    memcpy(&request, read->opaque, sizeof(request));
    int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        return read_failed(w, read->rank, code, err);
    if (!done) {
        memcpy(read->opaque, &request, sizeof(request));
        ddstore__mpi_leave();
        return 0;
    }
    code = MPI_Win_unlock(read->rank, w->win);
    atomic_store_explicit(&w->busy, 0, memory_order_release);
    ddstore__mpi_leave();
    return code == MPI_SUCCESS ? 1 : ddstore__mpi_fail(err, code, "MPI_Win_unlock", "");
}

void ddstore__mpi_windows_free(ddstore_mpi *mpi)
{
    for (window *w = mpi->windows; w; w = w->next)
        if (w->win != MPI_WIN_NULL)
            (void)MPI_Win_free(&w->win);
}

bool ddstore__mpi_windows_busy(const ddstore_mpi *mpi)
{
    for (const window *w = mpi->windows; w; w = w->next)
        if (atomic_load(&w->busy))
            return true;
    return false;
}

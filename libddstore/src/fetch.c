/* Reading rows of one shard, and what batches share with it. The path of mapped rows
 * takes no lock and writes no shared line. */
#include "fetch.h"

#include "copy.h"

#include <stdio.h>

#define SOON_BYTES 4096u /* of a row that is asked for ahead of its get */

/* -- profile -- */

void ddstore__count_read(ddstore_var *var, uint64_t rows, uint64_t local,
                         const ddstore__times *t, int64_t read_ns)
{
    ddstore__counters *c = &var->counters;
    uint64_t far = rows - local;
    atomic_fetch_add(&c->calls, 1);
    atomic_fetch_add(&c->rows, rows);
    atomic_fetch_add(&c->bytes, rows * var->row_bytes);
    atomic_fetch_add(&c->rows_local, local);
    atomic_fetch_add(&c->rows_far, far);
    atomic_fetch_add(&c->mr_miss, t->registrations);
    atomic_fetch_add(&c->mr_ns, (unsigned long long)t->mr_ns);
    atomic_fetch_add(&c->read_ns, (unsigned long long)(t->post_ns + read_ns));
    atomic_fetch_add(&c->wait_ns, (unsigned long long)t->wait_ns);
}

int ddstore_get_profile(ddstore_var *var, ddstore_profile *out)
{
    ddstore__counters *c = &var->counters;
    const ddstore__access *by = &var->access;
    *out = (ddstore_profile){
        .calls = c->calls,
        .rows = c->rows,
        .bytes = c->bytes,
        .rows_local = c->rows_local,
        .rows_rdma = by->ofi ? c->rows_far : 0,
        .rows_mpi = by->mpi ? c->rows_far : 0,
        .rows_tcp = by->ofi || by->mpi ? 0 : c->rows_far,
        .mr_miss = c->mr_miss,
        .lock_wait = 0, /* reads take no lock */
        .mr = (double)c->mr_ns / 1e9,
        .read = (double)c->read_ns / 1e9,
        .cq = (double)c->wait_ns / 1e9,
    };
    if (var->store->method == 0) { /* by path alone */
        out->calls = out->rows = out->mr_miss = 0;
        out->mr = out->read = out->cq = 0;
    }
    return DDSTORE_OK;
}

/* -- one rank's shard -- */

const uint8_t *ddstore__mapped(ddstore_var *var, ddstore__attachment *a)
{
    const uint8_t *data = atomic_load_explicit(&a->data, memory_order_acquire);
    if (data || atomic_load_explicit(&a->settled, memory_order_acquire))
        return data;
    pthread_mutex_lock(&var->store->attach_lock);
    if (!atomic_load(&a->settled))
        ddstore__attach(a, &var->access);
    pthread_mutex_unlock(&var->store->attach_lock);
    return atomic_load(&a->data);
}

int ddstore__name_rank(int rank, int rc, ddstore_error *err)
{
    if (rc == DDSTORE_EINTR || rc == DDSTORE_ENOMEM)
        return rc;
    return ddstore__wrap(err, rc, "rank %d", rank);
}

int ddstore__far_failed(const ddstore_var *var, const ddstore__request *q, int rc,
                        ddstore_error *err)
{
    if (rc == DDSTORE_ECLOSED && !atomic_load(&var->store->closed))
        atomic_store(&q->from->over, true);
    else if (rc == DDSTORE_EPEER && atomic_load(&q->from->over))
        rc = ddstore__wrap(err, DDSTORE_ECLOSED, "its store was freed");
    return ddstore__name_rank(q->rank, rc, err);
}

/* Batches of method 0 travel otherwise, so it is one request. */
static int window_read(ddstore_var *var, const ddstore__request *request,
                       ddstore__times *times, ddstore_error *err)
{
    if (!var->window)
        return ddstore__fail(
            err, DDSTORE_EFABRIC,
            "its memory can't be mapped any more, and no MPI window was "
            "made since it could be: see ulimit -n");
    return ddstore__window_read(&var->access, var->window, request, times, err);
}

int ddstore__far_read(ddstore__reader *reader, ddstore_var *var,
                      const ddstore__request *requests, size_t n, ddstore__times *times,
                      ddstore_error *err)
{
    size_t failed = 0;
    ddstore__stream *streams;
    int rc;
    if (var->access.mpi) {
        rc = window_read(var, requests, times, err);
    } else if (var->access.ofi) {
        rc = ddstore__rdma_read(reader, &var->access, requests, n, times, &failed, err);
    } else {
        int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
        rc = ddstore__tcp_begin(reader, &var->access, requests, n, &streams, &failed,
                                err);
        if (!rc)
            rc = ddstore__tcp_finish(reader, &var->access, streams, n, &failed, err);
        if (begin)
            times->wait_ns += ddstore__now_ns() - begin;
    }
    return rc ? ddstore__far_failed(var, &requests[failed], rc, err) : DDSTORE_OK;
}

/* -- get -- */

static int check_range(const ddstore_var *var, int64_t start, int64_t rows, int *rank,
                       ddstore_error *err)
{
    int64_t total = ddstore__layout_total(&var->layout);
    if (rows < 0 || start < 0 || start > total || rows > total - start)
        return ddstore__fail(err, DDSTORE_EINDEX,
                             "row %lld is out of range, with %lld rows from there on: "
                             "variable %s has %lld rows",
                             (long long)start, (long long)rows, var->name,
                             (long long)total);
    if (!rows)
        return DDSTORE_OK;
    *rank = ddstore__layout_rank(&var->layout, start);
    if (rows > var->layout.start[*rank + 1] - start)
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "rows %lld to %lld of variable %s cross the shard boundary at "
            "row %lld (rank %d): use get_batch or two gets",
            (long long)start, (long long)(start + rows - 1), var->name,
            (long long)var->layout.start[*rank + 1], *rank);
    return DDSTORE_OK;
}

static int get(ddstore__reader *reader, ddstore_var *var, int64_t start, int64_t rows,
               uint8_t *dst, ddstore_error *err)
{
    int rank = 0;
    int rc = check_range(var, start, rows, &rank, err);
    uint64_t bytes = (uint64_t)rows * var->row_bytes;
    if (rc || !bytes)
        return rc;
    ddstore__attachment *a = &var->part[rank];
    uint64_t offset = (uint64_t)(start - var->layout.start[rank]) * var->row_bytes;
    const uint8_t *data = ddstore__mapped(var, a);
    ddstore__times times = {0};
    int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
    if (data) {
        if (!ddstore__mapped_ok(a))
            return ddstore__name_rank(rank, ddstore__mapped_error(a, err), err);
        memmove(dst, data + offset, bytes); /* dst may be of a view */
    } else {
        ddstore__piece piece = {DDSTORE__HEAD_BYTES + offset, bytes, dst};
        ddstore__request request = {a, &piece, 1, rank};
        rc = ddstore__far_read(reader, var, &request, 1, &times, err);
    }
    if (begin && !rc)
        ddstore__count_read(var, (uint64_t)rows, data ? (uint64_t)rows : 0, &times,
                            data ? ddstore__now_ns() - begin : 0);
    return rc;
}

void ddstore__get_soon(ddstore_var *var, int64_t start)
{
    if (start < 0 || start >= ddstore__layout_total(&var->layout))
        return;
    int rank = ddstore__layout_rank(&var->layout, start);
    const uint8_t *data =
        atomic_load_explicit(&var->part[rank].data, memory_order_relaxed);
    uint64_t bytes = var->row_bytes < SOON_BYTES ? var->row_bytes : SOON_BYTES;
    if (data)
        ddstore__ask_for(
            data + (uint64_t)(start - var->layout.start[rank]) * var->row_bytes, bytes);
}

int ddstore_get(ddstore_var *var, int64_t start, int64_t rows, void *dst,
                ddstore_error *err)
{
    ddstore__get_soon(var, start);
    ddstore__reader *reader = ddstore__reader_enter(var->store);
    if (!reader)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a read");
    int rc = ddstore__store_usable(var->store, err);
    if (!rc)
        rc = get(reader, var, start, rows, dst, err);
    ddstore__reader_leave(reader);
    return rc;
}

/* -- destinations that are used again -- */

int ddstore_register_recv(ddstore *store, void *data, uint64_t bytes,
                          ddstore_error *err)
{
    int rc = ddstore__store_usable(store, err);
    return rc || store->method == 0
               ? rc
               : ddstore__registry_add(&store->registry, store->access.ofi, data, bytes,
                                       err);
}

int ddstore_unregister_recv(ddstore *store, void *data, uint64_t bytes,
                            ddstore_error *err)
{
    int rc = ddstore__store_usable(store, err);
    return rc || store->method == 0
               ? rc
               : ddstore__registry_remove(&store->registry, store->access.ofi, data,
                                          bytes, err);
}

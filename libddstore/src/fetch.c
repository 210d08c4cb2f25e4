/* Reading rows: what is mapped is copied at once, the rest is asked for first and
 * received while that goes on. The path of mapped rows takes no lock and writes no
 * shared line. */
#include "fetch.h"

#include "copy.h"

#include <stdio.h>

#define SOON_BYTES 4096u /* of a row that is asked for ahead of its get */
#define BLOCK      256   /* rows whose sources are found before they are copied */

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
    return DDSTORE_OK;
}

/* -- one rank's shard -- */

/* Where the rows of the attachment are mapped, or NULL: they are read over the network.
 */
static const uint8_t *mapped(ddstore_var *var, ddstore__attachment *a)
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

static int name_rank(int rank, int rc, ddstore_error *err)
{
    if (rc == DDSTORE_EINTR || rc == DDSTORE_ENOMEM)
        return rc;
    return ddstore__wrap(err, rc, "rank %d", rank);
}

/* An owner that freed its store and then ended is not lost: it said so. */
static int far_failed(const ddstore_var *var, const ddstore__request *q, int rc,
                      ddstore_error *err)
{
    if (rc == DDSTORE_ECLOSED && !atomic_load(&var->store->closed))
        atomic_store(&q->from->over, true);
    else if (rc == DDSTORE_EPEER && atomic_load(&q->from->over))
        rc = ddstore__fail(err, DDSTORE_ECLOSED, "its store was freed");
    return name_rank(q->rank, rc, err);
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

static int far_read(ddstore__reader *reader, ddstore_var *var,
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
    return rc ? far_failed(var, &requests[failed], rc, err) : DDSTORE_OK;
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
    const uint8_t *data = mapped(var, a);
    ddstore__times times = {0};
    int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
    if (data) {
        if (!ddstore__mapped_ok(a))
            return name_rank(rank, ddstore__mapped_error(a, err), err);
        memmove(dst, data + offset, bytes); /* dst may be of a view */
    } else {
        ddstore__piece piece = {DDSTORE__HEAD_BYTES + offset, bytes, dst};
        ddstore__request request = {a, &piece, 1, rank};
        rc = far_read(reader, var, &request, 1, &times, err);
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

/* -- get_batch -- */

int ddstore__check_rows(const ddstore_var *var, const int64_t *rows, size_t n,
                        ddstore_error *err)
{
    uint64_t total = (uint64_t)ddstore__layout_total(&var->layout);
    uint64_t bad = 0;
    for (size_t i = 0; i < n; i++) /* without a branch, so that it is vectorized */
        bad |= (uint64_t)((uint64_t)rows[i] >= total);
    if (!bad)
        return DDSTORE_OK;
    size_t i = 0;
    while ((uint64_t)rows[i] < total)
        i++;
    return ddstore__fail(
        err, DDSTORE_EINDEX,
        "index %lld (at position %zu) is out of range: variable %s has %llu "
        "rows",
        (long long)rows[i], i, var->name, (unsigned long long)total);
}

/* The sources of a block of rows, those of neighbours in one piece; returns how many
 * there are, or a negative code. Rows that are not mapped are appended to far, and
 * their source is NULL. */
static int find_sources(ddstore_var *var, const int64_t *rows, size_t n, size_t place,
                        struct iovec *source, ddstore__far_row *far, size_t *n_far,
                        ddstore_error *err)
{
    int found = 0;
    int64_t end = 0; /* of the shard, if the row before is mapped */
    for (size_t i = 0; i < n; i++) {
        if (found && rows[i] < end && rows[i] == rows[i - 1] + 1) {
            source[found - 1].iov_len += var->row_bytes;
            continue;
        }
        end = 0;
        int rank = ddstore__layout_rank(&var->layout, rows[i]);
        ddstore__attachment *a = &var->part[rank];
        const uint8_t *data = mapped(var, a);
        source[found++] = (struct iovec){NULL, var->row_bytes};
        if (!data && !far)
            return ddstore__fail(err, DDSTORE_ECLOSED, "the store was freed");
        if (!data) {
            far[(*n_far)++] = (ddstore__far_row){rows[i], place + i};
            continue;
        }
        if (!ddstore__mapped_ok(a))
            return name_rank(rank, ddstore__mapped_error(a, err), err);
        uint64_t first = (uint64_t)(rows[i] - var->layout.start[rank]);
        source[found - 1].iov_base = (void *)(data + first * var->row_bytes);
        end = var->layout.start[rank + 1];
    }
    return found;
}

/* Copies those that are mapped; their neighbours in the destination come by network. */
static void copy_some(uint8_t *dst, const struct iovec *source, size_t n)
{
    for (size_t i = 0; i < n; dst += source[i++].iov_len)
        if (source[i].iov_base)
            memmove(dst, source[i].iov_base, source[i].iov_len);
}

/* Copies all rows that are mapped; the others are listed in far. */
int ddstore__copy_mapped(ddstore_var *var, const int64_t *rows, size_t n, uint8_t *dst,
                         bool copy, ddstore__far_row *far, size_t *n_far,
                         ddstore_error *err)
{
    struct iovec source[BLOCK];
    *n_far = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t block = n - at < BLOCK ? n - at : BLOCK, before = *n_far;
        int rc = find_sources(var, rows + at, block, at, source, far, n_far, err);
        if (rc < 0)
            return rc;
        if (!copy)
            continue;
        if (*n_far == before)
            ddstore__copy_pieces(dst + at * var->row_bytes, source, (size_t)rc);
        else
            copy_some(dst + at * var->row_bytes, source, (size_t)rc);
    }
    return DDSTORE_OK;
}

static bool may_be_far(const ddstore_var *var)
{
    const int64_t *start = var->layout.start;
    for (int r = 0; r < var->ranks; r++)
        if (!atomic_load_explicit(&var->part[r].data, memory_order_relaxed) &&
            start[r + 1] > start[r])
            return true;
    return false;
}

/* Asks for the far rows, copies the mapped ones, and takes the answers. */
static int read_plan(ddstore__reader *reader, ddstore_var *var,
                     const ddstore__plan *plan, const int64_t *rows, size_t n,
                     uint8_t *dst, ddstore__far_row *far, bool any_mapped,
                     ddstore__times *times, ddstore_error *err)
{
    size_t failed = 0, again;
    ddstore__stream *streams = NULL;
    int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
    int rc;
    if (var->access.ofi) {
        rc = far_read(reader, var, plan->requests, plan->n_requests, times, err);
        return rc || !any_mapped
                   ? rc
                   : ddstore__copy_mapped(var, rows, n, dst, true, far, &again, err);
    }
    rc = ddstore__tcp_begin(reader, &var->access, plan->requests, plan->n_requests,
                            &streams, &failed, err);
    if (rc)
        return far_failed(var, &plan->requests[failed], rc, err);
    int local = any_mapped
                    ? ddstore__copy_mapped(var, rows, n, dst, true, far, &again, err)
                    : 0;
    rc = ddstore__tcp_finish(reader, &var->access, streams, plan->n_requests, &failed,
                             local ? NULL : err);
    if (begin)
        times->wait_ns += ddstore__now_ns() - begin;
    if (local)
        return local;
    return rc ? far_failed(var, &plan->requests[failed], rc, err) : DDSTORE_OK;
}

static int get_far_batch(ddstore__reader *reader, ddstore_var *var, const int64_t *rows,
                         size_t n, uint8_t *dst, size_t *n_far, ddstore__times *times,
                         ddstore_error *err)
{
    ddstore__plan plan;
    ddstore__far_row *far =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_ENTRIES, n * sizeof(*far));
    if (!far)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a batch of %zu rows",
                             n);
    int rc = ddstore__copy_mapped(var, rows, n, dst, false, far, n_far, err);
    if (rc)
        return rc;
    if (!*n_far)
        return ddstore__copy_mapped(var, rows, n, dst, true, far, n_far, err);
    if (ddstore__plan_make(reader, var, far, *n_far, dst, &plan))
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a batch of %zu rows",
                             n);
    rc = read_plan(reader, var, &plan, rows, n, dst, far, *n_far < n, times, err);
    for (size_t i = 0; !rc && i < plan.n_repeats; i++)
        memcpy(dst + plan.repeats[i].to * var->row_bytes,
               dst + plan.repeats[i].from * var->row_bytes, var->row_bytes);
    return rc;
}

static int get_batch(ddstore__reader *reader, ddstore_var *var, const int64_t *rows,
                     size_t n, uint8_t *dst, ddstore_error *err)
{
    int rc = ddstore__check_rows(var, rows, n, err);
    if (rc || !n || !var->row_bytes)
        return rc;
    ddstore__times times = {0};
    size_t n_far = 0;
    int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
    if (may_be_far(var))
        rc = get_far_batch(reader, var, rows, n, dst, &n_far, &times, err);
    else
        rc = ddstore__copy_mapped(var, rows, n, dst, true, NULL, &n_far, err);
    if (begin && !rc)
        ddstore__count_read(var, n, n - n_far, &times,
                            n_far ? 0 : ddstore__now_ns() - begin);
    return rc;
}

static int get_batch_together(ddstore *store, ddstore_var *var, const int64_t *rows,
                              size_t n, void *dst, const ddstore_error *failure,
                              ddstore_error *err)
{
    int rc;
    ddstore__reader *reader = ddstore__collective_enter(store, "take part", &rc, err);
    if (!reader)
        return rc;
    rc = ddstore__alltoall(store, var, reader, rows, n, dst, failure, err);
    return ddstore__collective_leave(store, reader, rc);
}

int ddstore_get_batch_failed(ddstore *store, const ddstore_error *why,
                             ddstore_error *err)
{
    if (store->method != 0)
        return ddstore__fail(err, why->code, "%s", why->message);
    return get_batch_together(store, NULL, NULL, 0, NULL, why, err);
}

int ddstore_get_batch(ddstore_var *var, const int64_t *rows, size_t n, void *dst,
                      ddstore_error *err)
{
    if (var->store->method == 0)
        return get_batch_together(var->store, var, rows, n, dst, NULL, err);
    ddstore__reader *reader = ddstore__reader_enter(var->store);
    if (!reader)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a read");
    int rc = ddstore__store_usable(var->store, err);
    if (!rc)
        rc = get_batch(reader, var, rows, n, dst, err);
    ddstore__reader_leave(reader);
    return rc;
}

/* -- destinations that are used again -- */

int ddstore_register_recv(ddstore *store, void *data, uint64_t bytes,
                          ddstore_error *err)
{
    int rc = ddstore__store_usable(store, err);
    return rc ? rc
              : ddstore__registry_add(&store->registry, store->access.ofi, data, bytes,
                                      err);
}

int ddstore_unregister_recv(ddstore *store, void *data, uint64_t bytes,
                            ddstore_error *err)
{
    int rc = ddstore__store_usable(store, err);
    return rc ? rc
              : ddstore__registry_remove(&store->registry, store->access.ofi, data,
                                         bytes, err);
}

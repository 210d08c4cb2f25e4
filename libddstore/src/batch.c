/* Batches: rows in any order, and runs of rows. Consecutive rows of one shard are one
 * piece throughout. What is far is asked for first; what is mapped is copied before its
 * answers are taken. */
#include "copy.h"
#include "fetch.h"

#include <stdlib.h>

#define BLOCK 256 /* pieces whose sources are found before they are copied */

/* -- what is wanted -- */

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

/* Also counts the runs' rows, and the pieces that they make up where shards end. */
static int check_runs(const ddstore_var *var, ddstore__wish *w, ddstore_error *err)
{
    int64_t total = ddstore__layout_total(&var->layout);
    w->pieces = 0;
    w->total = 0;
    for (size_t i = 0; i < w->n; i++) {
        int64_t row = w->runs[i].row, rows = w->runs[i].rows;
        if (rows < 0 || row < 0 || row > total || rows > total - row)
            return ddstore__fail(err, DDSTORE_EINDEX,
                                 "%lld rows from row %lld on (run %zu) are out of "
                                 "range: variable %s has %lld rows",
                                 (long long)rows, (long long)row, i, var->name,
                                 (long long)total);
        if (!rows)
            continue;
        w->total += (uint64_t)rows;
        w->pieces += (size_t)(1 + ddstore__layout_rank(&var->layout, row + rows - 1) -
                              ddstore__layout_rank(&var->layout, row));
    }
    return DDSTORE_OK;
}

/* How far a wish has been looked through. */
typedef struct cursor {
    size_t i;     /* the next row or run ... */
    int64_t done; /* ... of which so many rows are behind */
    size_t place; /* of the next row in the destination */
} cursor;

static bool more(const ddstore__wish *w, cursor *c)
{
    while (!w->rows && c->i < w->n && !w->runs[c->i].rows)
        c->i++; /* an empty run is nowhere */
    return c->i < w->n;
}

/* The next piece: consecutive rows of one shard. */
static ddstore__far_run next(const ddstore_var *var, const ddstore__wish *w, cursor *c,
                             int *rank)
{
    ddstore__far_run piece = {.rows = 1, .place = c->place};
    if (w->rows) {
        piece.row = w->rows[c->i++];
        *rank = ddstore__layout_rank(&var->layout, piece.row);
        int64_t end = var->layout.start[*rank + 1];
        while (c->i < w->n && w->rows[c->i] == piece.row + piece.rows &&
               piece.row + piece.rows < end) {
            piece.rows++;
            c->i++;
        }
    } else {
        const ddstore_run *run = &w->runs[c->i];
        piece.row = run->row + c->done;
        *rank = ddstore__layout_rank(&var->layout, piece.row);
        int64_t left = run->rows - c->done;
        int64_t here = var->layout.start[*rank + 1] - piece.row;
        piece.rows = left < here ? left : here;
        c->done += piece.rows;
        if (left <= here)
            *c = (cursor){.i = c->i + 1};
    }
    c->place = piece.place + (size_t)piece.rows;
    return piece;
}

/* -- what is mapped -- */

static void add_far(ddstore__far *far, ddstore__far_run piece, bool singly)
{
    far->rows += (uint64_t)piece.rows;
    for (; singly && piece.rows > 1; piece.row++, piece.place++, piece.rows--)
        far->runs[far->n++] = (ddstore__far_run){piece.row, 1, piece.place};
    far->runs[far->n++] = piece;
}

/* The sources of the next pieces, at most BLOCK; returns how many, or a negative code.
 * Those that are not mapped are appended to far, and their source is NULL. */
static int find_sources(ddstore_var *var, const ddstore__wish *w, cursor *c,
                        struct iovec *source, ddstore__far *far, ddstore_error *err)
{
    int found = 0;
    while (found < BLOCK && more(w, c)) {
        int rank;
        ddstore__far_run piece = next(var, w, c, &rank);
        ddstore__attachment *a = &var->part[rank];
        const uint8_t *data = ddstore__mapped(var, a);
        source[found++] = (struct iovec){NULL, (uint64_t)piece.rows * var->row_bytes};
        if (!data && !far)
            return ddstore__fail(err, DDSTORE_ECLOSED, "the store was freed");
        if (!data) {
            add_far(far, piece, w->singly);
            continue;
        }
        if (!ddstore__mapped_ok(a))
            return ddstore__name_rank(rank, ddstore__mapped_error(a, err), err);
        uint64_t first = (uint64_t)(piece.row - var->layout.start[rank]);
        source[found - 1].iov_base = (void *)(data + first * var->row_bytes);
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

int ddstore__copy_mapped(ddstore_var *var, const ddstore__wish *w, uint8_t *dst,
                         bool copy, ddstore__far *far, ddstore_error *err)
{
    struct iovec source[BLOCK];
    cursor c = {0};
    if (far)
        far->n = far->rows = 0;
    while (more(w, &c)) {
        uint8_t *to = dst + c.place * var->row_bytes;
        size_t before = far ? far->n : 0;
        int n = find_sources(var, w, &c, source, far, err);
        if (n < 0)
            return n;
        if (!copy)
            continue;
        if (!far || far->n == before)
            ddstore__copy_pieces(to, source, (size_t)n);
        else
            copy_some(to, source, (size_t)n);
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

/* -- what is far -- */

/* Asks for the far rows, copies the mapped ones, and takes the answers. */
static int read_plan(ddstore__reader *reader, ddstore_var *var,
                     const ddstore__plan *plan, const ddstore__wish *w, uint8_t *dst,
                     const ddstore__far *far, ddstore__times *times, ddstore_error *err)
{
    bool any_mapped = far->rows < w->total;
    ddstore__far again = *far; /* found once more while the mapped ones are copied */
    size_t failed = 0;
    ddstore__stream *streams = NULL;
    int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
    int rc;
    if (var->access.ofi) {
        rc = ddstore__far_read(reader, var, plan->requests, plan->n_requests, times,
                               err);
        return rc || !any_mapped ? rc
                                 : ddstore__copy_mapped(var, w, dst, true, &again, err);
    }
    rc = ddstore__tcp_begin(reader, &var->access, plan->requests, plan->n_requests,
                            &streams, &failed, err);
    if (rc)
        return ddstore__far_failed(var, &plan->requests[failed], rc, err);
    int local = any_mapped ? ddstore__copy_mapped(var, w, dst, true, &again, err) : 0;
    rc = ddstore__tcp_finish(reader, &var->access, streams, plan->n_requests, &failed,
                             local ? NULL : err);
    if (begin)
        times->wait_ns += ddstore__now_ns() - begin;
    if (local)
        return local;
    return rc ? ddstore__far_failed(var, &plan->requests[failed], rc, err) : DDSTORE_OK;
}

static int no_memory(const ddstore__wish *w, ddstore_error *err)
{
    return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a batch of %llu rows",
                         (unsigned long long)w->total);
}

static int get_far_batch(ddstore__reader *reader, ddstore_var *var,
                         const ddstore__wish *w, uint8_t *dst, ddstore__far *far,
                         ddstore__times *times, ddstore_error *err)
{
    ddstore__plan plan;
    far->runs = ddstore__reader_scratch(reader, DDSTORE__SCRATCH_ENTRIES,
                                        w->pieces * sizeof(*far->runs));
    if (!far->runs)
        return no_memory(w, err);
    int rc = ddstore__copy_mapped(var, w, dst, false, far, err);
    if (rc)
        return rc;
    if (!far->n)
        return ddstore__copy_mapped(var, w, dst, true, far, err);
    if (ddstore__plan_make(reader, var, far->runs, far->n, dst, &plan))
        return no_memory(w, err);
    rc = read_plan(reader, var, &plan, w, dst, far, times, err);
    for (size_t i = 0; !rc && i < plan.n_repeats; i++)
        memcpy(dst + plan.repeats[i].to * var->row_bytes,
               dst + plan.repeats[i].from * var->row_bytes,
               plan.repeats[i].rows * var->row_bytes);
    return rc;
}

/* -- the calls -- */

static int get_wish(ddstore__reader *reader, ddstore_var *var, ddstore__wish *w,
                    uint8_t *dst, ddstore_error *err)
{
    int rc = w->rows ? ddstore__check_rows(var, w->rows, w->n, err)
                     : check_runs(var, w, err);
    if (rc || !w->total || !var->row_bytes)
        return rc;
    ddstore__times times = {0};
    ddstore__far far = {0};
    int64_t begin = var->store->settings.profile ? ddstore__now_ns() : 0;
    if (may_be_far(var))
        rc = get_far_batch(reader, var, w, dst, &far, &times, err);
    else
        rc = ddstore__copy_mapped(var, w, dst, true, NULL, err);
    if (begin && !rc)
        ddstore__count_read(var, w->total, w->total - far.rows, &times,
                            far.rows ? 0 : ddstore__now_ns() - begin);
    return rc;
}

static int get_alone(ddstore_var *var, ddstore__wish *w, void *dst, ddstore_error *err)
{
    ddstore__reader *reader = ddstore__reader_enter(var->store);
    if (!reader)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a read");
    int rc = ddstore__store_usable(var->store, err);
    if (!rc)
        rc = get_wish(reader, var, w, dst, err);
    ddstore__reader_leave(reader);
    return rc;
}

static int get_together(ddstore *store, ddstore_var *var, const int64_t *rows, size_t n,
                        void *dst, const ddstore_error *failure, ddstore_error *err)
{
    int rc;
    ddstore__reader *reader = ddstore__collective_enter(store, "take part", &rc, err);
    if (!reader)
        return rc;
    rc = ddstore__alltoall(store, var, reader, rows, n, dst, failure, err);
    return ddstore__collective_leave(store, reader, rc);
}

/* Method 0 sends the others numbers of rows. NULL: why says what failed. */
static int64_t *list_rows(const ddstore_var *var, ddstore__wish *w, ddstore_error *why)
{
    if (check_runs(var, w, why))
        return NULL;
    int64_t *rows =
        w->total < SIZE_MAX / 16 ? malloc((w->total + 1) * sizeof(*rows)) : NULL;
    int64_t *at = rows;
    if (!rows)
        no_memory(w, why);
    for (size_t i = 0; rows && i < w->n; i++)
        for (int64_t j = 0; j < w->runs[i].rows; j++)
            *at++ = w->runs[i].row + j;
    return rows;
}

int ddstore_get_batch_failed(ddstore *store, const ddstore_error *why,
                             ddstore_error *err)
{
    if (store->method != 0)
        return ddstore__fail(err, why->code, "%s", why->message);
    return get_together(store, NULL, NULL, 0, NULL, why, err);
}

int ddstore_get_batch(ddstore_var *var, const int64_t *rows, size_t n, void *dst,
                      ddstore_error *err)
{
    if (!n)
        rows = NULL; /* as runs, of which there are none */
    ddstore__wish w = {.rows = rows, .n = n, .pieces = n, .total = n};
    return var->store->method == 0
               ? get_together(var->store, var, rows, n, dst, NULL, err)
               : get_alone(var, &w, dst, err);
}

int ddstore_get_runs(ddstore_var *var, const ddstore_run *runs, size_t n, void *dst,
                     ddstore_error *err)
{
    ddstore__wish w = {.runs = runs, .n = n};
    ddstore_error why;
    if (var->store->method != 0)
        return get_alone(var, &w, dst, err);
    int64_t *rows = list_rows(var, &w, &why);
    int rc = get_together(var->store, var, rows, rows ? w.total : 0, dst,
                          rows ? NULL : &why, err);
    free(rows);
    return rc;
}

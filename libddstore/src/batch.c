/* Batches: rows in any order, and runs of rows. What is far is asked for first; what is
 * mapped is copied before its answers are taken. */
#include "fetch.h"

#include <stdlib.h>

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
                     : ddstore__check_runs(var, w, err);
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
    ddstore__reader *reader =
        ddstore__collective_enter(store, DDSTORE__CALL_BATCH, &rc, err);
    if (!reader)
        return rc;
    rc = ddstore__alltoall(store, var, reader, rows, n, dst, failure, err);
    return ddstore__collective_leave(store, reader, rc);
}

/* Method 0 sends the others numbers of rows. NULL: why says what failed. */
static int64_t *list_rows(const ddstore_var *var, ddstore__wish *w, ddstore_error *why)
{
    if (ddstore__check_runs(var, w, why))
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

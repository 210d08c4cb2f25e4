/* The plan of a batch: far runs sorted, so that neighbours and repeats lie together. */
#include "plan.h"

#define FEW 8 /* runs that are sorted by insertion */

/* Merges the sorted runs [0, middle) and [middle, n) into out. */
static void merge(const ddstore__far_run *runs, size_t middle, size_t n,
                  ddstore__far_run *out)
{
    size_t a = 0, b = middle;
    while (a < middle && b < n)
        *out++ = runs[a].row <= runs[b].row ? runs[a++] : runs[b++];
    while (a < middle)
        *out++ = runs[a++];
    while (b < n)
        *out++ = runs[b++];
}

static void sort_few(ddstore__far_run *runs, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        ddstore__far_run run = runs[i];
        size_t j = i;
        for (; j && runs[j - 1].row > run.row; j--)
            runs[j] = runs[j - 1];
        runs[j] = run;
    }
}

/* By row; equal ones stay in the order of their places. qsort takes twice as
 * long, which shows in a batch. */
static void sort(ddstore__far_run *runs, size_t n, ddstore__far_run *spare)
{
    ddstore__far_run *from = runs, *to = spare;
    size_t sorted = 1;
    while (sorted < n && runs[sorted - 1].row <= runs[sorted].row)
        sorted++;
    if (sorted >= n)
        return;
    for (size_t at = 0; at < n; at += FEW)
        sort_few(runs + at, n - at < FEW ? n - at : FEW);
    for (size_t width = FEW; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t left = n - at;
            merge(from + at, left < width ? left : width,
                  left < 2 * width ? left : 2 * width, to + at);
        }
        ddstore__far_run *other = from;
        from = to;
        to = other;
    }
    if (from != runs)
        memcpy(runs, from, n * sizeof(*runs));
}

/* Adds rows of the request's rank to it: to its last piece, if they follow on both
 * sides. next: where the request's next piece goes. */
static void add_piece(ddstore__request *q, ddstore__piece **next, ddstore__piece piece)
{
    ddstore__piece *last = q->n ? *next - 1 : NULL;
    if (last && last->offset + last->bytes == piece.offset &&
        last->dst + last->bytes == piece.dst) {
        last->bytes += piece.bytes;
        return;
    }
    *(*next)++ = piece;
    q->n++;
}

/* The rows of the run that `before`, which reaches furthest, has brought already. */
static int64_t repeated(const ddstore__far_run *before, const ddstore__far_run *run)
{
    int64_t rows = before->row + before->rows - run->row;
    return rows < 0 ? 0 : rows < run->rows ? rows : run->rows;
}

int ddstore__plan_make(ddstore__reader *reader, ddstore_var *var,
                       ddstore__far_run *runs, size_t n, uint8_t *dst,
                       ddstore__plan *out)
{
    const ddstore__layout *layout = &var->layout;
    size_t ranks = n < (size_t)var->ranks ? n : (size_t)var->ranks;
    uint64_t row_bytes = var->row_bytes;
    ddstore__piece *pieces =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_PIECES, n * sizeof(*pieces));
    *out = (ddstore__plan){
        .requests = ddstore__reader_scratch(reader, DDSTORE__SCRATCH_REQUESTS,
                                            ranks * sizeof(*out->requests)),
        .repeats = ddstore__reader_scratch(reader, DDSTORE__SCRATCH_COPIES,
                                           n * sizeof(*out->repeats)),
    };
    ddstore__far_run *spare =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_SORT, n * sizeof(*spare));
    if (!pieces || !spare || !out->requests || !out->repeats)
        return DDSTORE_ENOMEM;
    sort(runs, n, spare);
    ddstore__request *q = NULL;
    const ddstore__far_run none = {0}, *furthest = &none;
    int64_t first = 0, end = 0; /* global rows of the current request's rank */
    for (size_t i = 0; i < n; i++) {
        const ddstore__far_run *run = &runs[i];
        int64_t again = repeated(furthest, run);
        if (again)
            out->repeats[out->n_repeats++] =
                (ddstore__repeat){furthest->place + (size_t)(run->row - furthest->row),
                                  run->place, (size_t)again};
        if (again == run->rows)
            continue;
        furthest = run;
        if (!q || run->row >= end) {
            int rank = ddstore__layout_rank(layout, run->row);
            q = &out->requests[out->n_requests++];
            *q = (ddstore__request){
                .from = &var->part[rank], .pieces = pieces, .rank = rank};
            first = layout->start[rank];
            end = layout->start[rank + 1];
        }
        add_piece(
            q, &pieces,
            (ddstore__piece){
                DDSTORE__HEAD_BYTES + (uint64_t)(run->row + again - first) * row_bytes,
                (uint64_t)(run->rows - again) * row_bytes,
                dst + (run->place + (size_t)again) * row_bytes,
            });
    }
    return DDSTORE_OK;
}

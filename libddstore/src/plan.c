/* The plan of a batch: far rows sorted, so that neighbours and repeats lie together. */
#include "plan.h"

#define FEW 8 /* rows that are sorted by insertion */

/* Merges the sorted rows [0, middle) and [middle, n) into out. */
static void merge(const ddstore__far_row *rows, size_t middle, size_t n,
                  ddstore__far_row *out)
{
    size_t a = 0, b = middle;
    while (a < middle && b < n)
        *out++ = rows[a].row <= rows[b].row ? rows[a++] : rows[b++];
    while (a < middle)
        *out++ = rows[a++];
    while (b < n)
        *out++ = rows[b++];
}

static void sort_few(ddstore__far_row *rows, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        ddstore__far_row row = rows[i];
        size_t j = i;
        for (; j && rows[j - 1].row > row.row; j--)
            rows[j] = rows[j - 1];
        rows[j] = row;
    }
}

/* By row; equal ones stay in the order of their places. qsort takes twice as
 * long, which shows in a batch. */
static void sort(ddstore__far_row *rows, size_t n, ddstore__far_row *spare)
{
    ddstore__far_row *from = rows, *to = spare;
    size_t sorted = 1;
    while (sorted < n && rows[sorted - 1].row <= rows[sorted].row)
        sorted++;
    if (sorted >= n)
        return;
    for (size_t at = 0; at < n; at += FEW)
        sort_few(rows + at, n - at < FEW ? n - at : FEW);
    for (size_t width = FEW; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t left = n - at;
            merge(from + at, left < width ? left : width,
                  left < 2 * width ? left : 2 * width, to + at);
        }
        ddstore__far_row *other = from;
        from = to;
        to = other;
    }
    if (from != rows)
        memcpy(rows, from, n * sizeof(*rows));
}

int ddstore__plan_make(ddstore__reader *reader, ddstore_var *var,
                       ddstore__far_row *rows, size_t n, uint8_t *dst,
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
    ddstore__far_row *spare =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_SORT, n * sizeof(*spare));
    if (!pieces || !spare || !out->requests || !out->repeats)
        return DDSTORE_ENOMEM;
    sort(rows, n, spare);
    ddstore__request *q = NULL;
    ddstore__piece *p = NULL;
    int64_t first = 0, end = 0; /* global rows of the current request's rank */
    for (size_t i = 0; i < n; i++) {
        int64_t row = rows[i].row;
        uint8_t *at = dst + rows[i].place * row_bytes;
        if (i && row == rows[i - 1].row) {
            size_t from = out->n_repeats && out->repeats[out->n_repeats - 1].to ==
                                                rows[i - 1].place
                              ? out->repeats[out->n_repeats - 1].from
                              : rows[i - 1].place;
            out->repeats[out->n_repeats++] = (ddstore__repeat){from, rows[i].place};
            continue;
        }
        if (!q || row >= end) {
            int rank = ddstore__layout_rank(layout, row);
            q = &out->requests[out->n_requests++];
            *q = (ddstore__request){
                .from = &var->part[rank], .pieces = pieces, .rank = rank};
            first = layout->start[rank];
            end = layout->start[rank + 1];
            p = NULL;
        }
        uint64_t offset = DDSTORE__HEAD_BYTES + (uint64_t)(row - first) * row_bytes;
        if (p && p->offset + p->bytes == offset && p->dst + p->bytes == at) {
            p->bytes += row_bytes;
        } else {
            p = pieces++;
            *p = (ddstore__piece){offset, row_bytes, at};
            q->n++;
        }
    }
    return DDSTORE_OK;
}

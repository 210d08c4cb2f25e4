/* The plan of a batch: far rows sorted, so that neighbours and repeats lie together. */
#include "plan.h"

#include <stdlib.h>

static int by_row(const void *a, const void *b)
{
    const ddstore__far_row *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static void sort(ddstore__far_row *rows, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (rows[i].row < rows[i - 1].row) {
            qsort(rows, n, sizeof(*rows), by_row);
            return;
        }
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
    if (!pieces || !out->requests || !out->repeats)
        return DDSTORE_ENOMEM;
    sort(rows, n);
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

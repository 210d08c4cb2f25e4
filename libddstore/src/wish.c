/* What a batch asks for: checked, cut into pieces, which are consecutive rows of one
 * shard, and those that are mapped copied. */
#include "copy.h"
#include "fetch.h"

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

int ddstore__check_runs(const ddstore_var *var, ddstore__wish *w, ddstore_error *err)
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

/* Layout: prefix sums over the shards, and the search among unequal ones. */
#include "layout.h"

#include <stdlib.h>

/* Equal but for the last ranks, which may have fewer or none: 0 where that isn't so. */
static uint64_t common_reciprocal(const int64_t *rows, int ranks)
{
    int64_t q = rows[0];
    if (q <= 1)
        return 0; /* 2^64 / 1 doesn't fit; the search does as well */
    int i = 1;
    while (i < ranks && rows[i] == q)
        i++;
    if (i < ranks && rows[i] > q)
        return 0;
    for (i++; i < ranks; i++)
        if (rows[i] != 0)
            return 0;
    return UINT64_MAX / (uint64_t)q;
}

int ddstore__layout_open(const int64_t *rows, int ranks, ddstore__layout *out)
{
    *out = (ddstore__layout){.ranks = ranks};
    out->start = malloc(((size_t)ranks + 1) * sizeof(*out->start));
    if (!out->start)
        return DDSTORE_ENOMEM;
    out->start[0] = 0;
    for (int i = 0; i < ranks; i++) {
        if (rows[i] < 0 || rows[i] > INT64_MAX - out->start[i]) {
            ddstore__layout_close(out);
            return DDSTORE_EINVAL;
        }
        out->start[i + 1] = out->start[i] + rows[i];
    }
    out->reciprocal = common_reciprocal(rows, ranks);
    return DDSTORE_OK;
}

void ddstore__layout_close(ddstore__layout *layout)
{
    free(layout->start);
    layout->start = NULL;
}

int ddstore__layout_search(const ddstore__layout *l, int64_t row)
{
    int low = 0, high = l->ranks; /* start[low] <= row < start[high] */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (l->start[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

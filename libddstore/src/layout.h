/* Layout: which rank holds a global row. Prefix sums; O(1) where shards are equal. */
#ifndef DDSTORE_LAYOUT_H
#define DDSTORE_LAYOUT_H

#include "base.h"

typedef struct ddstore__layout {
    int ranks;
    int64_t *start;      /* ranks + 1: first global row of each, then the total */
    uint64_t reciprocal; /* of the common number of rows, * 2^64; 0: they differ */
} ddstore__layout;

/* Takes the rows of each rank. DDSTORE_ENOMEM; DDSTORE_EINVAL: negative, or too many.
 */
int ddstore__layout_open(const int64_t *rows, int ranks, ddstore__layout *out);
void ddstore__layout_close(ddstore__layout *layout);

static inline int64_t ddstore__layout_total(const ddstore__layout *l)
{
    return l->start[l->ranks];
}

int ddstore__layout_search(const ddstore__layout *l, int64_t row);

/* The rank that holds row, which is in [0, total). */
static inline int ddstore__layout_rank(const ddstore__layout *l, int64_t row)
{
    if (!l->reciprocal)
        return ddstore__layout_search(l, row);
    /* The product is at most one too low: the reciprocal was rounded down. */
    __extension__ typedef unsigned __int128 u128;
    int rank = (int)((u128)(uint64_t)row * l->reciprocal >> 64);
    return rank + (row >= l->start[rank + 1]);
}

#endif

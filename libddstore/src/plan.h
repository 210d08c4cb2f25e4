/* The plan of a batch: which pieces of which ranks go where. */
#ifndef DDSTORE_PLAN_H
#define DDSTORE_PLAN_H

#include "store.h"

/* Rows of one shard that are not mapped, and their place in the destination. */
typedef struct ddstore__far_run {
    int64_t row, rows; /* row: global, the first */
    size_t place;      /* in rows */
} ddstore__far_run;

/* Repeated rows: fetched once, copied afterwards, in the order of the repeats. */
typedef struct ddstore__repeat {
    size_t from, to, rows; /* places in the destination */
} ddstore__repeat;

typedef struct ddstore__plan {
    ddstore__request *requests; /* one a rank, pieces ascending and apart */
    size_t n_requests;
    ddstore__repeat *repeats;
    size_t n_repeats;
} ddstore__plan;

/* Groups n far runs (which it sorts) by rank, merges neighbours and finds repeats. The
 * plan lies in the reader's scratch memory. DDSTORE_ENOMEM. */
int ddstore__plan_make(ddstore__reader *reader, ddstore_var *var,
                       ddstore__far_run *runs, size_t n, uint8_t *dst,
                       ddstore__plan *out);

#endif

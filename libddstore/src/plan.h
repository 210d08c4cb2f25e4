/* The plan of a batch: which pieces of which ranks go where. */
#ifndef DDSTORE_PLAN_H
#define DDSTORE_PLAN_H

#include "store.h"

/* A row that is not mapped, and its place in the destination. */
typedef struct ddstore__far_row {
    int64_t row; /* global */
    size_t place;
} ddstore__far_row;

/* A repeated row: fetched once, copied behind. */
typedef struct ddstore__repeat {
    size_t from, to; /* places in the destination */
} ddstore__repeat;

typedef struct ddstore__plan {
    ddstore__request *requests; /* one a rank, pieces ascending */
    size_t n_requests;
    ddstore__repeat *repeats;
    size_t n_repeats;
} ddstore__plan;

/* Groups n far rows (which it sorts) by rank, merges neighbours and finds repeats. The
 * plan lies in the reader's scratch memory. DDSTORE_ENOMEM. */
int ddstore__plan_make(ddstore__reader *reader, ddstore_var *var,
                       ddstore__far_row *rows, size_t n, uint8_t *dst,
                       ddstore__plan *out);

#endif

/* What all ways of reading rows share. */
#ifndef DDSTORE_FETCH_H
#define DDSTORE_FETCH_H

#include "plan.h"

/* DDSTORE_EINDEX with the first index that is outside the variable. */
int ddstore__check_rows(const ddstore_var *var, const int64_t *rows, size_t n,
                        ddstore_error *err);

/* Copies (or, without `copy`, only finds) all rows that are mapped; the others are
 * listed in far (room for n; NULL: there can be none), in their order. */
int ddstore__copy_mapped(ddstore_var *var, const int64_t *rows, size_t n, uint8_t *dst,
                         bool copy, ddstore__far_row *far, size_t *n_far,
                         ddstore_error *err);

/* DDSTORE_PROFILE=1: enters one call. */
void ddstore__count_read(ddstore_var *var, uint64_t rows, uint64_t local,
                         const ddstore__times *t, int64_t read_ns);

#endif

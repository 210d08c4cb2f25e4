/* What all ways of reading rows share. */
#ifndef DDSTORE_FETCH_H
#define DDSTORE_FETCH_H

#include "plan.h"

/* What a batch asks for, back to back in its destination: rows by their numbers, or
 * runs of them. */
typedef struct ddstore__wish {
    const int64_t *rows; /* NULL: runs */
    const ddstore_run *runs;
    size_t n;       /* of either */
    size_t pieces;  /* at most, each of one shard */
    uint64_t total; /* rows */
    bool singly;    /* far rows are listed one by one */
} ddstore__wish;

/* Rows that are not mapped, in the order in which they are wanted. */
typedef struct ddstore__far {
    ddstore__far_run *runs; /* the caller's: room for the wish's pieces, or rows */
    size_t n;
    uint64_t rows;
} ddstore__far;

/* DDSTORE_EINDEX with the first index that is outside the variable. */
int ddstore__check_rows(const ddstore_var *var, const int64_t *rows, size_t n,
                        ddstore_error *err);

/* The same of runs; counts the wish's rows, and the pieces that they make up where
 * shards end. */
int ddstore__check_runs(const ddstore_var *var, ddstore__wish *w, ddstore_error *err);

/* Copies (or, without `copy`, only finds) all rows that are mapped; the others are
 * listed in far (NULL: there can be none). */
int ddstore__copy_mapped(ddstore_var *var, const ddstore__wish *w, uint8_t *dst,
                         bool copy, ddstore__far *far, ddstore_error *err);

/* Where the rows of the attachment are mapped, or NULL: they are read over the network.
 */
const uint8_t *ddstore__mapped(ddstore_var *var, ddstore__attachment *a);

/* Reads over the network, until all is there. */
int ddstore__far_read(ddstore__reader *reader, ddstore_var *var,
                      const ddstore__request *requests, size_t n, ddstore__times *times,
                      ddstore_error *err);

/* What a failed request says. An owner that freed its store and then ended is not lost:
 * it said so. */
int ddstore__far_failed(const ddstore_var *var, const ddstore__request *q, int rc,
                        ddstore_error *err);

/* Puts the rank's number before a failure that is about it; returns the code. */
int ddstore__name_rank(int rank, int rc, ddstore_error *err);

/* DDSTORE_PROFILE=1: enters one call. */
void ddstore__count_read(ddstore_var *var, uint64_t rows, uint64_t local,
                         const ddstore__times *t, int64_t read_ns);

#endif

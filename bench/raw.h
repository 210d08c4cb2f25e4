/* Raw reads by libfabric as a way of reading rows; without libfabric there are none. */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

#include "bench.h"

typedef struct raw_reads {
    char provider[64];
    void *client;
    bench_peer peer;
    size_t row_bytes;
    size_t outstanding;
} raw_reads;

/* Software providers that may be here, by libfabric's names; *n says how many. */
const char *const *raw_providers(size_t *n);

/* Starts a server of the table on the provider and connects to it. false: it can't be
 * had, and why says so. Close with raw_reads_close. */
bool raw_reads_open(const bench_context *ctx, const char *provider,
                    const bench_table *table, raw_reads *out, char *why, size_t room);
/* The one that reads 128 rows fastest; why then tells how all did. */
bool raw_reads_open_fastest(const bench_context *ctx, const bench_table *table,
                            raw_reads *out, char *why, size_t room);
void raw_reads_close(raw_reads *reads);

/* At most `outstanding` reads in flight. The way uses reads itself: one way at a time.
 */
bench_way raw_reads_way(raw_reads *reads, size_t outstanding);

#endif

/* What is read: rows whose bytes tell which they are, in an order that no cache
 * foresees, and the two members that hold them. */
#include "bench.h"

#include "store.h" /* the library's own: where a mapped row lies */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t word_of(int64_t row, size_t place)
{
    return (uint64_t)row * 0x9e3779b97f4a7c15u + place;
}

void bench_fill(void *data, int64_t first_row, int64_t rows, size_t row_bytes)
{
    uint8_t *at = data;
    for (int64_t row = first_row; row < first_row + rows; row++)
        for (size_t place = 0; place < row_bytes; place += 8, at += 8)
            memcpy(at, &(uint64_t){word_of(row, place)}, 8);
}

void bench_check(const void *data, const int64_t *rows, size_t n, size_t row_bytes,
                 const char *what)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < n; i++)
        for (size_t place = 0; place < row_bytes; place += 8, at += 8)
            if (memcmp(at, &(uint64_t){word_of(rows[i], place)}, 8) != 0)
                bench_die("%s: wrong bytes in row %" PRId64 " at %zu", what, rows[i],
                          place);
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void bench_dealer_open(bench_dealer *d, size_t total, uint64_t seed)
{
    *d = (bench_dealer){.rows = malloc(total * sizeof(*d->rows)), .total = total};
    if (!d->rows)
        bench_die("no memory for %zu indices", total);
    for (size_t i = 0; i < total; i++)
        d->rows[i] = (int64_t)i;
    for (size_t i = total; i-- > 1;) {
        size_t j = next_random(&seed) % (i + 1);
        int64_t row = d->rows[i];
        d->rows[i] = d->rows[j];
        d->rows[j] = row;
    }
}

const int64_t *bench_deal(bench_dealer *d, size_t n)
{
    if (d->next + n > d->total)
        d->next = 0;
    const int64_t *rows = d->rows + d->next;
    d->next += n;
    return rows;
}

void bench_dealer_close(bench_dealer *d)
{
    free(d->rows);
    d->rows = NULL;
}

/* -- tables as arguments -- */

size_t bench_tables_write(const bench_table *tables, size_t n, char text[][24],
                          const char **arguments)
{
    for (size_t i = 0; i < n; i++) {
        snprintf(text[3 * i], sizeof(text[0]), "%zu", tables[i].row_bytes);
        snprintf(text[3 * i + 1], sizeof(text[0]), "%" PRId64, tables[i].rows);
        snprintf(text[3 * i + 2], sizeof(text[0]), "%d", tables[i].at_peer);
        for (size_t j = 0; j < 3; j++)
            arguments[3 * i + j] = text[3 * i + j];
    }
    return 3 * n;
}

size_t bench_tables_read(int argc, char **argv, bench_table *tables)
{
    size_t n = 0;
    for (; argc >= 3 && n < BENCH_TABLES; argc -= 3, argv += 3)
        tables[n++] = (bench_table){.row_bytes = strtoull(argv[0], NULL, 10),
                                    .rows = strtoll(argv[1], NULL, 10),
                                    .at_peer = strcmp(argv[2], "1") == 0};
    return n;
}

/* -- the members -- */

static ddstore_var *add(ddstore *store, const bench_table *table, int rank)
{
    ddstore_error err;
    ddstore_var *var = NULL;
    ddstore_view *view;
    void *data;
    uint64_t bytes;
    char name[32];
    int64_t first = rank && !table->at_peer ? table->rows / 2 : 0;
    int64_t end = rank ? table->rows : table->at_peer ? 0 : table->rows / 2;
    ddstore_shard shard = {
        .rows = end - first, .disp = table->row_bytes, .itemsize = 1, .dtype = "|u1"};
    snprintf(name, sizeof(name), "rows of %zu bytes", table->row_bytes);
    if (ddstore_add(store, name, &shard, &var, &err) ||
        ddstore_view_open(var, &data, &bytes, &view, &err))
        bench_die("rank %d: %s", rank, err.message);
    bench_fill(data, first, end - first, table->row_bytes);
    ddstore_view_close(view);
    return var;
}

ddstore *bench_member_open(const char *dir, int rank, const bench_table *tables,
                           size_t n, ddstore_var **vars)
{
    ddstore_error err;
    ddstore *store = NULL;
    ddstore_comm_file how = {
        .dir = dir, .ns = "bench", .rank = rank, .size = 2, .timeout_s = 30};
    ddstore_options options = {.struct_bytes = sizeof(options), .method = 1};
    if (ddstore_open_file(&how, &options, &store, &err))
        bench_die("rank %d: %s", rank, err.message);
    for (size_t i = 0; i < n; i++)
        vars[i] = add(store, &tables[i], rank);
    return store;
}

ddstore *bench_pair_open(const bench_context *ctx, const bench_table *tables, size_t n,
                         ddstore_var **vars, bench_peer *peer)
{
    char text[3 * BENCH_TABLES][24];
    const char *arguments[1 + 3 * BENCH_TABLES] = {ctx->dir};
    size_t used = bench_tables_write(tables, n, text, arguments + 1);
    char ready;
    *peer = bench_peer_start(ctx, "store", arguments, 1 + used);
    ddstore *store = bench_member_open(ctx->dir, 0, tables, n, vars);
    bench_peer_listen(peer, &ready, 1);
    return store;
}

const uint8_t *bench_mapped_row(ddstore_var *var, int64_t row)
{
    int rank = ddstore__layout_rank(&var->layout, row);
    const uint8_t *data = atomic_load(&var->part[rank].data);
    if (!data)
        bench_die("rank %d is not mapped", rank);
    return data + (uint64_t)(row - var->layout.start[rank]) * var->row_bytes;
}

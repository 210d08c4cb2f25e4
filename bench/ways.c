/* The ways of reading that several parts measure: a loop of memcpy and the library's
 * two calls. */
#include "bench.h"

#include <string.h>

static void find_sources(void *arg, const int64_t *rows, size_t n)
{
    bench_copy *c = arg;
    for (size_t i = 0; i < n; i++)
        c->source[i] = bench_mapped_row(c->var, rows[i]);
}

static void copy_rows(void *arg, const int64_t *rows, size_t n, void *dst)
{
    const bench_copy *c = arg;
    size_t row_bytes = c->row_bytes;
    (void)rows;
    for (size_t i = 0; i < n; i++)
        memcpy((uint8_t *)dst + i * row_bytes, c->source[i], row_bytes);
}

bench_way bench_way_copy(const char *what, bench_copy *copy)
{
    return (bench_way){what, find_sources, copy_rows, copy};
}

static void get_batch(void *arg, const int64_t *rows, size_t n, void *dst)
{
    ddstore_error err;
    if (ddstore_get_batch(arg, rows, n, dst, &err))
        bench_die("get_batch: %s", err.message);
}

bench_way bench_way_batch(ddstore_var *var)
{
    return (bench_way){"get_batch", NULL, get_batch, var};
}

static void get_each(void *arg, const int64_t *rows, size_t n, void *dst)
{
    ddstore_error err;
    ddstore_var_info info;
    uint8_t *at = dst;
    (void)ddstore_info(arg, &info);
    for (size_t i = 0; i < n; i++, at += info.row_bytes)
        if (ddstore_get(arg, rows[i], 1, at, &err))
            bench_die("get: %s", err.message);
}

bench_way bench_way_get(ddstore_var *var)
{
    return (bench_way){"get", NULL, get_each, var};
}

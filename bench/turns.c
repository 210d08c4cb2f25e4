/* Measuring in turn: what disturbs the machine disturbs all ways alike. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#define ROOM 8192 /* calls of a way that a round keeps */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) /* sorts them */
{
    qsort(values, n, sizeof(*values), by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

bench_spread bench_spread_of(const double *values, size_t n)
{
    double sorted[BENCH_ROUNDS];
    memcpy(sorted, values, n * sizeof(*sorted));
    double middle = median(sorted, n);
    return (bench_spread){sorted[0], middle, sorted[n - 1]};
}

bench_spread bench_time(const bench_turns *t, size_t way)
{
    double values[BENCH_ROUNDS];
    for (size_t i = 0; i < t->rounds; i++)
        values[i] = t->us[i][way];
    return bench_spread_of(values, t->rounds);
}

bench_spread bench_ratio(const bench_turns *t, size_t a, size_t b)
{
    double values[BENCH_ROUNDS];
    for (size_t i = 0; i < t->rounds; i++)
        values[i] = t->us[i][a] / t->us[i][b];
    return bench_spread_of(values, t->rounds);
}

static double call(const bench_way *way, bench_dealer *dealer, size_t batch, void *dst)
{
    const int64_t *rows = bench_deal(dealer, batch);
    if (way->prepare)
        way->prepare(way->arg, rows, batch);
    int64_t begin = bench_now_ns();
    way->read(way->arg, rows, batch, dst);
    return (double)(bench_now_ns() - begin) / 1e3;
}

/* Which way comes at place j of a turn: each comes first and last equally often. */
static size_t order(size_t turn, size_t j, size_t n)
{
    size_t way = (turn / 2 + j) % n;
    return turn % 2 ? n - 1 - way : way;
}

static void warm_up(const bench_way *ways, size_t n, bench_dealer *dealer, size_t batch,
                    size_t row_bytes, void *dst)
{
    for (size_t i = 0; i < n; i++) {
        for (int j = 0; j < 3; j++) {
            memset(dst, 0, batch * row_bytes);
            call(&ways[i], dealer, batch, dst);
        }
        const int64_t *rows = dealer->rows + dealer->next - batch;
        bench_check(dst, rows, batch, row_bytes, ways[i].what);
    }
}

static size_t take_round(const bench_way *ways, size_t n, bench_dealer *dealer,
                         size_t batch, void *dst, int64_t ns, double *samples,
                         double *medians)
{
    size_t in_a_row = ways[0].in_a_row ? ways[0].in_a_row : 1, calls = 0;
    int64_t end = bench_now_ns() + ns;
    for (size_t turn = 0; calls + in_a_row <= ROOM; turn++) {
        if (turn >= 4 && bench_now_ns() >= end)
            break;
        for (size_t j = 0; j < n; j++) {
            size_t way = order(turn, j, n);
            for (size_t i = 0; i < in_a_row; i++)
                samples[way * ROOM + calls + i] = call(&ways[way], dealer, batch, dst);
        }
        calls += in_a_row;
    }
    for (size_t way = 0; way < n; way++)
        medians[way] = median(samples + way * ROOM, calls);
    return calls;
}

void bench_take_turns(const bench_context *ctx, const bench_way *ways, size_t n,
                      bench_dealer *dealer, size_t batch, size_t row_bytes,
                      double seconds, bench_turns *out)
{
    void *dst = malloc(batch * row_bytes);
    double *samples = malloc(n * ROOM * sizeof(*samples));
    if (!dst || !samples)
        bench_die("no memory for %zu rows", batch);
    *out = (bench_turns){.rounds = ctx->quick ? 3 : BENCH_ROUNDS};
    int64_t ns = (int64_t)(seconds * 1e9 / (ctx->quick ? 10 : 1) / (double)out->rounds);
    warm_up(ways, n, dealer, batch, row_bytes, dst);
    for (size_t i = 0; i < out->rounds; i++)
        out->calls += take_round(ways, n, dealer, batch, dst, ns, samples, out->us[i]);
    free(samples);
    free(dst);
}

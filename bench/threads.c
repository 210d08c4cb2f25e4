/* Two threads that read one variable on two cores: what the second is worth, against
 * what it is worth to a loop of memcpy over the same rows. */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PART  "threads"
#define TRIES 4 /* until the control holds */

enum { PRODUCT, REFERENCE, CONTROL, WAYS };

/* A window: the first `workers` threads read in the way `way` until told to stop. */
static struct {
    pthread_barrier_t begin, end;
    atomic_bool stop, quit;
    size_t way, workers;
} window;

typedef struct worker {
    pthread_t thread;
    size_t number;
    int cpu;
    bench_way ways[WAYS];
    bench_copy copies[2];
    bench_dealer dealer;
    uint8_t *dst;
    double rate; /* calls a microsecond, of the last window */
} worker;

static void read_until_stop(worker *w, const bench_way *way)
{
    size_t calls = 0;
    int64_t from = bench_now_ns();
    while (!atomic_load_explicit(&window.stop, memory_order_relaxed)) {
        const int64_t *rows = bench_deal(&w->dealer, BATCH);
        if (way->prepare)
            way->prepare(way->arg, rows, BATCH);
        way->read(way->arg, rows, BATCH, w->dst);
        calls++;
    }
    w->rate = (double)calls / ((double)(bench_now_ns() - from) / 1e3);
}

static void *work(void *arg)
{
    worker *w = arg;
    bench_pin(w->cpu);
    for (;;) {
        pthread_barrier_wait(&window.begin);
        if (atomic_load(&window.quit))
            return NULL;
        if (w->number < window.workers)
            read_until_stop(w, &w->ways[window.way]);
        pthread_barrier_wait(&window.end);
    }
}

static void worker_open(worker *w, const bench_context *ctx, size_t number,
                        ddstore_var *var, size_t rows)
{
    *w = (worker){.number = number, .cpu = number ? ctx->peer_cpu : ctx->cpu};
    w->copies[0] = w->copies[1] = (bench_copy){.var = var, .row_bytes = ROW};
    w->ways[PRODUCT] = bench_way_batch(var);
    w->ways[REFERENCE] = bench_way_copy("memcpy", &w->copies[0]);
    w->ways[CONTROL] = bench_way_copy("memcpy again", &w->copies[1]);
    w->dst = malloc((size_t)BATCH * ROW);
    if (!w->dst)
        bench_die("no memory");
    memset(w->dst, 0, (size_t)BATCH * ROW);
    bench_dealer_open(&w->dealer, rows, number + 1);
    if (pthread_create(&w->thread, NULL, work, w) != 0)
        bench_die("can't start a thread");
}

/* Calls a microsecond of one way by some threads together. */
static double rate(worker *workers, size_t way, size_t n, double seconds)
{
    struct timespec t = {0, (long)(seconds * 1e9)};
    double sum = 0;
    window.way = way;
    window.workers = n;
    atomic_store(&window.stop, false);
    pthread_barrier_wait(&window.begin);
    nanosleep(&t, NULL);
    atomic_store(&window.stop, true);
    pthread_barrier_wait(&window.end);
    for (size_t i = 0; i < n; i++)
        sum += workers[i].rate;
    return sum;
}

typedef struct gains {
    size_t rounds;
    double of[WAYS][BENCH_ROUNDS];                     /* two threads against one */
    double ratio[BENCH_ROUNDS], control[BENCH_ROUNDS]; /* of the gains */
} gains;

static void take_rounds(const bench_context *ctx, worker *workers, gains *g)
{
    double seconds = ctx->quick ? 0.03 : 0.1;
    g->rounds = ctx->quick ? 3 : BENCH_ROUNDS;
    for (size_t r = 0; r < g->rounds; r++) {
        for (size_t i = 0; i < WAYS; i++) {
            size_t way = r % 2 ? WAYS - 1 - i : i;
            double one = rate(workers, way, 1, seconds);
            g->of[way][r] = rate(workers, way, 2, seconds) / one;
        }
        g->ratio[r] = g->of[PRODUCT][r] / g->of[REFERENCE][r];
        g->control[r] = g->of[CONTROL][r] / g->of[REFERENCE][r];
    }
}

static void measure(const bench_context *ctx, worker *workers)
{
    gains g;
    bench_spread score;
    bool held = false;
    for (int i = 0; i < TRIES && !held; i++) {
        take_rounds(ctx, workers, &g);
        score = bench_spread_of(g.control, g.rounds);
        held = score.middle >= 0.95 && score.middle <= 1.05;
    }
    char note[160];
    snprintf(note, sizeof(note), "%scontrol %.3f (%.3f-%.3f); %zu rounds",
             held ? "" : "VOID: the control is outside 0.95 to 1.05: ", score.middle,
             score.low, score.high, g.rounds);
    bench_print(ctx,
                &(bench_figure){
                    .part = PART,
                    .name = "speed-up of two threads, get_batch 128 x 3 KB, mapped (C)",
                    .unit = "x",
                    .value = bench_spread_of(g.of[PRODUCT], g.rounds).middle,
                    .reference = bench_spread_of(g.of[REFERENCE], g.rounds).middle,
                    .reference_what = "x memcpy",
                    .ratio = bench_spread_of(g.ratio, g.rounds),
                    .budget = 0.95,
                    .at_least = true,
                    .void_run = !held,
                    .note = note});
}

void bench_threads(const bench_context *ctx)
{
    bench_table table = {.row_bytes = ROW,
                         .rows = (int64_t)(bench_data_bytes(ctx, 768 * MB) / ROW)};
    bench_peer peer;
    ddstore_var *var;
    worker workers[2];
    char row[ROW];
    ddstore_error err;
    if (ctx->cpu == ctx->peer_cpu && ctx->cpu >= 0) {
        bench_print_skipped(ctx, PART, "speed-up of two threads (C)",
                            "this process may use one core only");
        return;
    }
    ddstore *store = bench_pair_open(ctx, &table, 1, &var, &peer);
    if (ddstore_get(var, table.rows - 1, 1, row, &err)) /* maps the peer's part */
        bench_die("get: %s", err.message);
    pthread_barrier_init(&window.begin, NULL, 3);
    pthread_barrier_init(&window.end, NULL, 3);
    for (size_t i = 0; i < 2; i++)
        worker_open(&workers[i], ctx, i, var, (size_t)table.rows);
    measure(ctx, workers);
    atomic_store(&window.quit, true);
    pthread_barrier_wait(&window.begin);
    for (size_t i = 0; i < 2; i++) {
        pthread_join(workers[i].thread, NULL);
        bench_dealer_close(&workers[i].dealer);
        free(workers[i].dst);
    }
    ddstore_close(store);
    bench_peer_end(&peer);
}

/* Path 1: rows of a member on this host, read through its mapping. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#define PART  "path1"
#define TRIES 4

enum { PRODUCT, REFERENCE, CONTROL, WAYS };

typedef struct sized { /* rows of one size */
    const char *label;
    size_t row_bytes, batch;
    double budget; /* 0: for information */
} sized;

static const sized sizes[] = {
    {"128 x 3 KB", ROW, BATCH, 1.25}, {"128 x 64 B", 64, BATCH, 0},
    {"128 x 512 B", 512, BATCH, 0},   {"128 x 12 KB", 12 * KB, BATCH, 0},
    {"16 x 1 MB", MB, 16, 0},
};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* Measures product, reference and control until the control holds. Returns the
 * control's ratio; *held says whether it did. */
static bench_spread measure(const bench_context *ctx, ddstore_var *var,
                            bench_way product, const sized *s, bench_turns *turns,
                            bool *held)
{
    bench_copy reference = {.var = var, .row_bytes = s->row_bytes};
    bench_copy control = reference;
    bench_way ways[WAYS] = {product, bench_way_copy("memcpy", &reference),
                            bench_way_copy("memcpy again", &control)};
    bench_spread score = {0};
    ddstore_var_info info;
    bench_dealer dealer;
    (void)ddstore_info(var, &info);
    bench_dealer_open(&dealer, (size_t)info.total_rows, s->row_bytes);
    *held = false;
    for (int i = 0; i < (s->budget ? TRIES : 1) && !*held; i++) {
        bench_take_turns(ctx, ways, WAYS, &dealer, s->batch, s->row_bytes,
                         s->budget ? 2.5 : 1.2, turns);
        score = bench_ratio(turns, CONTROL, REFERENCE);
        *held = score.middle >= 0.95 && score.middle <= 1.05;
    }
    bench_dealer_close(&dealer);
    return score;
}

static void print(const bench_context *ctx, const char *name, const sized *s,
                  const bench_turns *t, double per, bench_spread score, bool held)
{
    char note[200];
    snprintf(note, sizeof(note),
             "%scontrol %.3f (%.3f-%.3f); %zu calls each, %zu rounds",
             held ? "" : "VOID: the control is outside 0.95 to 1.05: ", score.middle,
             score.low, score.high, t->calls, t->rounds);
    bench_print(ctx, &(bench_figure){.part = PART,
                                     .name = name,
                                     .unit = "us",
                                     .value = bench_time(t, PRODUCT).middle / per,
                                     .reference = bench_time(t, REFERENCE).middle / per,
                                     .reference_what = "us memcpy",
                                     .ratio = bench_ratio(t, PRODUCT, REFERENCE),
                                     .budget = s->budget,
                                     .void_run = !held,
                                     .note = note});
}

static void one_size(const bench_context *ctx, ddstore_var *var, const sized *s)
{
    char name[64];
    bench_turns turns;
    bool held;
    bench_spread score = measure(ctx, var, bench_way_batch(var), s, &turns, &held);
    snprintf(name, sizeof(name), "get_batch %s, mapped (C)", s->label);
    print(ctx, name, s, &turns, 1, score, held);
}

static void single(const bench_context *ctx, ddstore_var *var)
{
    sized s = {.row_bytes = ROW, .batch = BATCH};
    bench_turns turns;
    bool held;
    bench_spread score = measure(ctx, var, bench_way_get(var), &s, &turns, &held);
    print(ctx, "get 3 KB, mapped (C)", &s, &turns, BATCH, score, held);
}

void bench_path1(const bench_context *ctx)
{
    bench_table tables[SIZES];
    ddstore_var *vars[SIZES];
    bench_peer peer;
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t bytes = bench_data_bytes(ctx, sizes[i].budget ? 768 * MB : 256 * MB);
        tables[i] = (bench_table){.row_bytes = sizes[i].row_bytes,
                                  .rows = (int64_t)(bytes / sizes[i].row_bytes)};
    }
    ddstore *store = bench_pair_open(ctx, tables, SIZES, vars, &peer);
    for (size_t i = 0; i < SIZES; i++) { /* maps the peer's part */
        ddstore_error err;
        void *row = bench_alloc(sizes[i].row_bytes);
        if (ddstore_get(vars[i], tables[i].rows - 1, 1, row, &err))
            bench_die("get: %s", err.message);
    }
    one_size(ctx, vars[0], &sizes[0]);
    single(ctx, vars[0]);
    for (size_t i = 1; i < SIZES; i++)
        one_size(ctx, vars[i], &sizes[i]);
    ddstore_close(store);
    bench_peer_end(&peer);
}

/* Path 2: the library's reads over a libfabric provider against bare fi_read on the
 * same one, with as many in flight. */
#include "bench.h"
#include "raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART  "path2"
#define TRIES 3 /* until the control holds */

enum { PRODUCT, RAW, CONTROL, WAYS };

static void measure(const bench_context *ctx, const bench_table *table,
                    bench_way product, raw_reads *reads, size_t outstanding)
{
    bench_way raw = raw_reads_way(reads, outstanding);
    bench_way ways[WAYS] = {product, raw, raw};
    /* After a pause the provider `sockets` takes its time: the first call of a turn
     * isn't what is asked about. */
    ways[0].in_a_row = 4;
    size_t batch = outstanding == 1 ? 16 : BATCH;
    double per = outstanding == 1 ? (double)batch : 1;
    bench_dealer dealer;
    bench_turns t;
    bench_spread score;
    bool held = false;
    char name[96], note[160];
    bench_dealer_open(&dealer, (size_t)table->rows, batch);
    for (int i = 0; i < (ctx->quick ? 1 : TRIES) && !held; i++) {
        bench_take_turns(ctx, ways, WAYS, &dealer, batch, ROW, 3, &t);
        score = bench_ratio(&t, CONTROL, RAW);
        held = score.middle >= 0.95 && score.middle <= 1.05;
    }
    bench_dealer_close(&dealer);
    snprintf(name, sizeof(name), "%s, ofi:%s (C)",
             outstanding == 1 ? "get 3 KB" : "get_batch 128 x 3 KB", ctx->provider);
    snprintf(note, sizeof(note),
             "%scontrol %.3f (%.3f-%.3f); %zu in flight; %zu calls each",
             held ? "" : "VOID: the control is outside 0.95 to 1.05: ", score.middle,
             score.low, score.high, outstanding, t.calls);
    bench_print(ctx, &(bench_figure){.part = PART,
                                     .name = name,
                                     .unit = "us",
                                     .value = bench_time(&t, PRODUCT).middle / per,
                                     .reference = bench_time(&t, RAW).middle / per,
                                     .reference_what = "us fi_read",
                                     .ratio = bench_ratio(&t, PRODUCT, RAW),
                                     .budget = 1.1,
                                     .void_run = !held,
                                     .note = note});
}

static void check_path(ddstore *store)
{
    ddstore_peer_info info;
    if (ddstore_peer_at(store, 1, &info) || strcmp(info.path, "rdma") != 0)
        bench_die("rank 1 is not read by path 2: %s", info.reason);
}

void bench_path2(const bench_context *ctx)
{
    bench_table table = {.row_bytes = ROW,
                         .rows = (int64_t)(bench_data_bytes(ctx, 256 * MB) / ROW),
                         .at_peer = true};
    char why[200], fabric[80], name[96];
    raw_reads reads;
    bench_peer peer;
    ddstore_var *var;
    if (!raw_reads_open(ctx, ctx->provider, &table, &reads, why, sizeof(why))) {
        snprintf(name, sizeof(name), "ofi:%s", ctx->provider);
        bench_print_skipped(ctx, PART, name, why);
        return;
    }
    snprintf(fabric, sizeof(fabric), "ofi:%s", ctx->provider);
    setenv("DDSTORE_SHM", "0", 1);
    setenv("DDSTORE_FABRIC", fabric, 1);
    ddstore *store = bench_pair_open(ctx, &table, 1, &var, &peer);
    check_path(store);
    measure(ctx, &table, bench_way_batch(var), &reads, BATCH);
    measure(ctx, &table, bench_way_get(var), &reads, 1);
    ddstore_close(store);
    bench_peer_end(&peer);
    raw_reads_close(&reads);
}

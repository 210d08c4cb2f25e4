/* Path 3: the library's own channel against a plain socket, and against reads by
 * libfabric's software providers. */
#include "bench.h"
#include "plain_socket.h"
#include "raw.h"

#include <stdio.h>
#include <stdlib.h>

#define PART     "path3"
#define BIG      MB
#define BIG_ROWS 16

enum { PRODUCT, PACKED, WRITEV, WAYS };
enum { SMALL_TABLE, BIG_TABLE, TABLES };

typedef struct path3 {
    const bench_context *ctx;
    const bench_table *tables;
    ddstore_var *vars[TABLES];
    plain_client *plain;
} path3;

typedef struct figure_plan { /* of one figure */
    const char *name;
    uint32_t table;
    size_t batch;
    bool each;  /* row by row, each a request */
    bool speed; /* MB/s, the budget a least; else us, the budget a most */
    double budget;
} figure_plan;

static void measure(const path3 *p, const figure_plan *plan)
{
    const bench_table *table = &p->tables[plan->table];
    ddstore_var *var = p->vars[plan->table];
    plain_arg packed = {p->plain, PLAIN_PACKED, plan->table, table->row_bytes,
                        plan->each};
    plain_arg writev = packed;
    writev.how = PLAIN_WRITEV;
    bench_way ways[WAYS] = {plan->each ? bench_way_get(var) : bench_way_batch(var),
                            plain_way("packed", &packed), plain_way("writev", &writev)};
    bench_dealer dealer;
    bench_turns t;
    bench_dealer_open(&dealer, (size_t)table->rows, plan->batch);
    bench_take_turns(p->ctx, ways, WAYS, &dealer, plan->batch, table->row_bytes, 3, &t);
    bench_dealer_close(&dealer);

    bench_spread us[WAYS];
    for (size_t i = 0; i < WAYS; i++)
        us[i] = bench_time(&t, i);
    size_t best = us[PACKED].middle <= us[WRITEV].middle ? PACKED : WRITEV;
    double calls = plan->each ? (double)plan->batch : 1;
    double megabytes = (double)(plan->batch * table->row_bytes) / 1e6;
    char note[200];
    snprintf(note, sizeof(note),
             "socket packed %.4g us, writev %.4g us; %zu calls each",
             us[PACKED].middle / calls, us[WRITEV].middle / calls, t.calls);
    bench_figure f = {
        .part = PART,
        .name = plan->name,
        .unit = plan->speed ? "MB/s" : "us",
        .value = plan->speed ? megabytes / us[PRODUCT].middle * 1e6
                             : us[PRODUCT].middle / calls,
        .reference =
            plan->speed ? megabytes / us[best].middle * 1e6 : us[best].middle / calls,
        .reference_what = plan->speed ? "MB/s socket" : "us socket",
        .ratio = plan->speed ? bench_ratio(&t, best, PRODUCT)
                             : bench_ratio(&t, PRODUCT, best),
        .budget = plan->budget,
        .at_least = plan->speed,
        .note = note,
    };
    bench_print(p->ctx, &f);
}

/* Against reads by libfabric, 128 in flight, on the provider that is fastest here. */
static void against_fi(const path3 *p)
{
    const char *name = "get_batch 128 x 3 KB, tcp, against 128 fi_read";
    const bench_table *table = &p->tables[SMALL_TABLE];
    raw_reads best = {0};
    char why[200];
    if (!raw_reads_open_fastest(p->ctx, table, &best, why, sizeof(why))) {
        bench_print_skipped(p->ctx, PART, name, why);
        return;
    }
    bench_way ways[2] = {bench_way_batch(p->vars[SMALL_TABLE]),
                         raw_reads_way(&best, BATCH)};
    ways[0].in_a_row = 8; /* else each begins with what the other left in the caches */
    bench_dealer dealer;
    bench_turns t;
    bench_dealer_open(&dealer, (size_t)table->rows, 5);
    bench_take_turns(p->ctx, ways, 2, &dealer, BATCH, ROW, 2.5, &t);
    bench_dealer_close(&dealer);
    raw_reads_close(&best);
    char what[80];
    snprintf(what, sizeof(what), "us %s", best.provider);
    bench_print(p->ctx, &(bench_figure){.part = PART,
                                        .name = name,
                                        .unit = "us",
                                        .value = bench_time(&t, 0).middle,
                                        .reference = bench_time(&t, 1).middle,
                                        .reference_what = what,
                                        .ratio = bench_ratio(&t, 1, 0),
                                        .budget = 5,
                                        .at_least = true,
                                        .note = why});
}

static const figure_plan plans[] = {
    {"get_batch 128 x 3 KB, tcp (C)", SMALL_TABLE, BATCH, false, false, 1.3},
    {"get 3 KB, tcp (C)", SMALL_TABLE, 16, true, false, 1.3},
    {"get_batch 16 x 1 MB, tcp (C)", BIG_TABLE, BIG_ROWS, false, true, 0.85},
    {"get 1 MB, tcp (C)", BIG_TABLE, 1, true, true, 0.85},
};

void bench_path3(const bench_context *ctx)
{
    uint64_t bytes = bench_data_bytes(ctx, 256 * MB);
    const bench_table tables[TABLES] = {
        {.row_bytes = ROW, .rows = (int64_t)(bytes / ROW), .at_peer = true},
        {.row_bytes = BIG, .rows = (int64_t)(bytes / BIG), .at_peer = true},
    };
    path3 p = {.ctx = ctx, .tables = tables};
    char text[3 * TABLES][24];
    const char *arguments[3 * TABLES];
    size_t n = bench_tables_write(tables, TABLES, text, arguments);
    bench_peer peer, server = bench_peer_start(ctx, "socket", arguments, n);
    setenv("DDSTORE_SHM", "0", 1);
    setenv("DDSTORE_FABRIC", "tcp", 1);
    ddstore *store = bench_pair_open(ctx, tables, TABLES, p.vars, &peer);
    p.plain = plain_open(&server);
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++)
        measure(&p, &plans[i]);
    plain_close(p.plain);
    bench_peer_end(&server);
    against_fi(&p);
    ddstore_close(store);
    bench_peer_end(&peer);
}

/* Raw reads by libfabric: which providers there are, and how fast each is. */
#include "raw.h"

#ifdef HAVE_FI

#include "fi_read_raw.h"

#include <poll.h>
#include <rdma/fabric.h>
#include <stdio.h>
#include <string.h>

/* The `tcp` of libfabric 1 has no endpoints of the kind that is read from. */
const char *const *raw_providers(size_t *n)
{
    static const char *const names[] = {"tcp;ofi_rxm", "sockets", "tcp"};
    *n = FI_MAJOR(fi_version()) >= 2 ? 3 : 2;
    return names;
}

bool raw_reads_open(const bench_context *ctx, const char *provider,
                    const bench_table *table, raw_reads *out, char *why, size_t room)
{
    char text[3][24];
    const char *arguments[4] = {provider};
    struct pollfd waiting;
    raw_fi_client *client;
    bench_tables_write(table, 1, text, arguments + 1);
    *out = (raw_reads){.row_bytes = table->row_bytes};
    snprintf(out->provider, sizeof(out->provider), "%s", provider);
    out->peer = bench_peer_start(ctx, "fi", arguments, 4);
    waiting = (struct pollfd){out->peer.out, POLLIN, 0};
    int rc = poll(&waiting, 1, 20000) == 1 && waiting.revents & POLLIN
                 ? raw_fi_open(provider, out->peer.out, &client)
                 : -1;
    if (rc == 0) {
        out->client = client;
        return true;
    }
    snprintf(why, room, "%s can't be had here (libfabric's code %d)", provider, rc);
    bench_peer_end(&out->peer);
    return false;
}

void raw_reads_close(raw_reads *reads)
{
    raw_fi_close(reads->client);
    bench_peer_end(&reads->peer);
}

static void read_rows(void *arg, const int64_t *rows, size_t n, void *dst)
{
    raw_reads *reads = arg;
    uint64_t offsets[BATCH];
    for (size_t i = 0; i < n; i++)
        offsets[i] = (uint64_t)rows[i] * reads->row_bytes;
    int rc = raw_fi_read_rows(reads->client, offsets, n, reads->row_bytes, dst,
                              reads->outstanding, false);
    if (rc != 0)
        bench_die("%s: fi_read: libfabric's code %d", reads->provider, rc);
}

bench_way raw_reads_way(raw_reads *reads, size_t outstanding)
{
    reads->outstanding = outstanding;
    return (bench_way){reads->provider, NULL, read_rows, reads};
}

static double time_of(const bench_context *ctx, raw_reads *reads,
                      const bench_table *table)
{
    bench_way way = raw_reads_way(reads, BATCH);
    bench_dealer dealer;
    bench_turns turns;
    bench_dealer_open(&dealer, (size_t)table->rows, 3);
    bench_take_turns(ctx, &way, 1, &dealer, BATCH, table->row_bytes, 0.4, &turns);
    bench_dealer_close(&dealer);
    return bench_time(&turns, 0).middle;
}

bool raw_reads_open_fastest(const bench_context *ctx, const bench_table *table,
                            raw_reads *out, char *why, size_t room)
{
    size_t n, used = 0;
    const char *const *names = raw_providers(&n);
    const char *best = NULL;
    double least = 0;
    *why = '\0';
    for (size_t i = 0; i < n; i++) {
        raw_reads one;
        if (!raw_reads_open(ctx, names[i], table, &one, why + used, room - used))
            continue;
        double us = time_of(ctx, &one, table);
        raw_reads_close(&one);
        snprintf(why + used, room - used, "%s%s %.4g us", used ? ", " : "", names[i],
                 us);
        used = strlen(why);
        if (!best || us < least) {
            best = names[i];
            least = us;
        }
    }
    return best && raw_reads_open(ctx, best, table, out, why + used, room - used);
}

#else

#include <stdio.h>

const char *const *raw_providers(size_t *n)
{
    *n = 0;
    return NULL;
}

bool raw_reads_open_fastest(const bench_context *ctx, const bench_table *table,
                            raw_reads *out, char *why, size_t room)
{
    (void)ctx, (void)table, (void)out;
    snprintf(why, room, "built without libfabric");
    return false;
}

bool raw_reads_open(const bench_context *ctx, const char *provider,
                    const bench_table *table, raw_reads *out, char *why, size_t room)
{
    (void)provider;
    return raw_reads_open_fastest(ctx, table, out, why, room);
}

void raw_reads_close(raw_reads *reads)
{
    (void)reads;
}

bench_way raw_reads_way(raw_reads *reads, size_t outstanding)
{
    (void)reads, (void)outstanding;
    return (bench_way){0};
}

#endif

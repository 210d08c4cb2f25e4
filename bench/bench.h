/* What the parts of the benchmark share: their surroundings, the peers they start, the
 * rows they read, and how several ways of reading are measured in turn. */
#ifndef BENCH_H
#define BENCH_H

#include "ddstore.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KB    1024u
#define MB    (1024u * 1024u)
#define ROW   (3 * KB) /* bytes of the row that budgets speak of */
#define BATCH 128      /* rows of a batch of it */

typedef struct bench_context {
    bool quick, json;
    const char *program;  /* this executable, to start peers from */
    const char *dir;      /* where members meet */
    const char *provider; /* of path 2 */
    int cpu, peer_cpu;    /* where this process and its peers run; -1: anywhere */
} bench_context;

/* The parts, each run in a process of its own, which they end on failure. */
void bench_path1(const bench_context *ctx);
void bench_path2(const bench_context *ctx);
void bench_path3(const bench_context *ctx);
void bench_threads(const bench_context *ctx);

/* -- misc.c -- */

int64_t bench_now_ns(void);
void bench_pin(int cpu); /* the calling thread; -1: nothing */
/* Says why and ends the process. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *bench_alloc(size_t bytes); /* page-aligned, filled in, as segments are */
/* Data to be read: `full` bytes, fewer where --quick or a lack of memory demands it. */
uint64_t bench_data_bytes(const bench_context *ctx, uint64_t full);

/* -- peers.c: the other processes -- */

typedef struct bench_peer {
    pid_t pid;
    int in, out; /* its standard input, whose end ends it, and its output */
} bench_peer;

/* Starts this program as a peer ("store", "socket" or "fi") with n arguments. */
bench_peer bench_peer_start(const bench_context *ctx, const char *kind,
                            const char *const *arguments, size_t n);
/* Reads what the peer says once it is ready. */
void bench_peer_listen(bench_peer *peer, void *data, size_t bytes);
void bench_peer_end(bench_peer *peer);
int bench_peer_main(int argc, char **argv);

/* -- rows.c: what is read -- */

/* A variable of two members: rank 0 is this process, rank 1 a peer. */
typedef struct bench_table {
    size_t row_bytes; /* no two tables have the same */
    int64_t rows;
    bool at_peer; /* all of them; else half of them are this process's own */
} bench_table;

#define BENCH_TABLES 8

/* Makes the rows of a table: words of 8 bytes that tell row and place. */
void bench_fill(void *data, int64_t first_row, int64_t rows, size_t row_bytes);
/* Ends the process unless data holds these rows. */
void bench_check(const void *data, const int64_t *rows, size_t n, size_t row_bytes,
                 const char *what);

/* Deals rows in random order: one comes back only when all the others have been dealt.
 */
typedef struct bench_dealer {
    int64_t *rows;
    size_t total, next;
} bench_dealer;

void bench_dealer_open(bench_dealer *d, size_t total, uint64_t seed);
const int64_t *bench_deal(bench_dealer *d, size_t n);
void bench_dealer_close(bench_dealer *d);

/* Tables as arguments of a peer, and back. */
size_t bench_tables_write(const bench_table *tables, size_t n, char text[][24],
                          const char **arguments);
size_t bench_tables_read(int argc, char **argv, bench_table *tables);

/* Opens the store of one member; adds and fills its part of each table. */
ddstore *bench_member_open(const char *dir, int rank, const bench_table *tables,
                           size_t n, ddstore_var **vars);
/* Starts rank 1 as a peer and opens rank 0 here. */
ddstore *bench_pair_open(const bench_context *ctx, const bench_table *tables, size_t n,
                         ddstore_var **vars, bench_peer *peer);
/* A row of a mapped variable, where this process sees it. */
const uint8_t *bench_mapped_row(ddstore_var *var, int64_t row);

/* -- ways.c: the ways that several parts measure -- */

/* One way of reading rows. */
typedef struct bench_way {
    const char *what;
    void (*prepare)(void *arg, const int64_t *rows, size_t n); /* nullable; not timed */
    void (*read)(void *arg, const int64_t *rows, size_t n, void *dst);
    void *arg;
    size_t in_a_row; /* calls a turn, of the first way: all do as many; 0: one */
} bench_way;

typedef struct bench_copy { /* the memcpy loop */
    ddstore_var *var;
    size_t row_bytes;
    const uint8_t *source[BATCH];
} bench_copy;

bench_way bench_way_copy(const char *what, bench_copy *copy);
bench_way bench_way_batch(ddstore_var *var); /* one ddstore_get_batch */
bench_way bench_way_get(ddstore_var *var);   /* a ddstore_get a row */

/* -- turns.c: measuring in turn -- */

#define BENCH_WAYS   6
#define BENCH_ROUNDS 9

typedef struct bench_turns {
    size_t rounds, calls;                /* calls: of each way */
    double us[BENCH_ROUNDS][BENCH_WAYS]; /* the round's median of a call */
} bench_turns;

/* Each way reads `batch` rows at a time, in turn and rows of its own, for about
 * `seconds` in all. What each reads is checked once before. */
void bench_take_turns(const bench_context *ctx, const bench_way *ways, size_t n,
                      bench_dealer *dealer, size_t batch, size_t row_bytes,
                      double seconds, bench_turns *out);

typedef struct bench_spread {
    double low, middle, high;
} bench_spread;

/* Over the rounds: of n values, of a way's time, of the ratio of way a to way b. */
bench_spread bench_spread_of(const double *values, size_t n);
bench_spread bench_time(const bench_turns *t, size_t way);
bench_spread bench_ratio(const bench_turns *t, size_t a, size_t b);

/* -- figures.c: what is said -- */

typedef struct bench_figure {
    const char *part, *name, *unit, *reference_what;
    double value, reference;
    bench_spread ratio;
    double budget; /* of the ratio; 0: none */
    bool at_least; /* the ratio must not be lower than the budget; else not higher */
    bool void_run; /* the control failed: no verdict */
    const char *note;
} bench_figure;

void bench_print(const bench_context *ctx, const bench_figure *figure);
/* Says that something was not measured. */
void bench_print_skipped(const bench_context *ctx, const char *part, const char *name,
                         const char *why);

#endif

/* Method 0 without MPI: ranks are processes, and what a plugin would ask MPI for they
 * do through shared memory. What real MPIs do is tested in tests/mpi; here sanitizers
 * look on, and MPI hangs or fails where it is told to. */
#include "core.h"
#include "ddstore_mpi.h"
#include "store.h"

#include <sys/mman.h>
#include <sys/uio.h>

#define RANKS     3
#define ROWS      40 /* of each rank */
#define ROW       24
#define ROOM      65536
#define ROUND_MAX 777

enum { NOT, GATHER, EXCHANGE };

typedef struct turn { /* of a rank; of every other collective */
    int bytes[RANKS], at[RANKS];
    uint8_t data[ROOM];
} turn;

static struct board {
    atomic_ulong begun[RANKS]; /* collectives */
    turn turns[2][RANKS];
    void *base[RANKS]; /* of the window */
    pid_t pid[RANKS];
    atomic_int hang_exchange, fail_exchange, hang_read;
} * board;

/* One rank's side, and what a collective that it began will write. */
static struct side {
    int rank, kind;
    unsigned long turn;
    uint8_t *to;
    size_t bytes;
    const int *to_bytes, *to_at;
} side;

static int begin_gather(void *arg, const void *mine, size_t bytes, void *all)
{
    (void)arg;
    CHECK(side.kind == NOT && bytes <= ROOM);
    side = (struct side){side.rank, GATHER, side.turn + 1, all, bytes, NULL, NULL};
    memcpy(board->turns[side.turn % 2][side.rank].data, mine, bytes);
    atomic_store(&board->begun[side.rank], side.turn);
    return 0;
}

static int begin_exchange(void *arg, const void *from, const int *from_bytes,
                          const int *from_at, void *to, const int *to_bytes,
                          const int *to_at)
{
    (void)arg;
    int sum = 0;
    CHECK(side.kind == NOT);
    side = (struct side){side.rank, EXCHANGE, side.turn + 1, to, 0, to_bytes, to_at};
    turn *mine = &board->turns[side.turn % 2][side.rank];
    for (int r = 0; r < RANKS; r++) {
        mine->bytes[r] = from_bytes[r];
        mine->at[r] = from_at[r];
        sum += from_bytes[r];
    }
    CHECK(sum <= ROUND_MAX);
    memcpy(mine->data, from, (size_t)sum);
    if (atomic_load(&board->fail_exchange))
        return -1;
    atomic_store(&board->begun[side.rank], side.turn);
    return 0;
}

static int test(void *arg)
{
    (void)arg;
    CHECK(side.kind != NOT);
    if (side.kind == EXCHANGE && atomic_load(&board->hang_exchange))
        return 0;
    for (int r = 0; r < RANKS; r++)
        if (atomic_load(&board->begun[r]) < side.turn)
            return 0;
    for (int r = 0; r < RANKS; r++) {
        const turn *theirs = &board->turns[side.turn % 2][r];
        if (side.kind == GATHER) {
            memcpy(side.to + (size_t)r * side.bytes, theirs->data, side.bytes);
        } else {
            CHECK(side.to_bytes[r] == theirs->bytes[side.rank]);
            memcpy(side.to + side.to_at[r], theirs->data + theirs->at[side.rank],
                   (size_t)side.to_bytes[r]);
        }
    }
    side.kind = NOT;
    return 1;
}

static int open_window(void *arg, void *base, uint64_t bytes, void *keep,
                       void (*drop)(void *keep), void **window, ddstore_error *err)
{
    (void)arg, (void)bytes, (void)err;
    board->base[side.rank] = base;
    board->pid[side.rank] = getpid();
    *window = board;
    drop(keep); /* the store holds it too */
    return 0;
}

static int sync_window(void *arg, void *window, ddstore_error *err)
{
    (void)arg, (void)window, (void)err;
    return 0;
}

static uint8_t *late; /* where a read that hangs will write */

static int begin_read(void *arg, void *window, int rank, uint64_t offset,
                      uint64_t bytes, void *dst, ddstore_mpi_read *read,
                      ddstore_error *err)
{
    (void)arg, (void)window, (void)read, (void)err;
    struct iovec to = {dst, bytes},
                 from = {(uint8_t *)board->base[rank] + offset, bytes};
    late = dst;
    if (!atomic_load(&board->hang_read))
        CHECK(process_vm_readv(board->pid[rank], &to, 1, &from, 1, 0) ==
              (ssize_t)bytes);
    return 0;
}

static int test_read(void *arg, ddstore_mpi_read *read, ddstore_error *err)
{
    (void)arg, (void)read, (void)err;
    return !atomic_load(&board->hang_read);
}

/* -- a rank -- */

static ddstore *open_rank(void)
{
    static const ddstore_setting settings[] = {
        {"DDSTORE_SHM", "0"},
        {"DDSTORE_FABRIC", "tcp"},
        {"DDSTORE_ALLTOALL_MAX_BYTES", "777"},
        {"DDSTORE_READ_TIMEOUT_S", "1"},
        {"DDSTORE_HANDSHAKE_TIMEOUT_S", "2"},
    };
    ddstore *store = NULL;
    ddstore_mpi_calls calls = {
        .struct_bytes = sizeof(calls),
        .comm = {.rank = side.rank,
                 .size = RANKS,
                 .allgather = begin_gather,
                 .test = test},
        .library = "shared memory",
        .exchange = begin_exchange,
        .window_open = open_window,
        .window_sync = sync_window,
        .read_begin = begin_read,
        .read_test = test_read,
    };
    ddstore_options options = {.struct_bytes = sizeof(options),
                               .settings = settings,
                               .n_settings = DDSTORE__COUNT(settings)};
    CHECK(ddstore_open_mpi_calls(&calls, &options, &store, &fault) == 0);
    return store;
}

static ddstore_var *add_rows(ddstore *store)
{
    uint8_t data[ROWS * ROW];
    ddstore_shard shard = {ROWS, ROW, 1, "x", data};
    ddstore_var *var = NULL;
    fill_rows(data, (int64_t)side.rank * ROWS, ROWS, ROW, SEED);
    CHECK(ddstore_add(store, "v", &shard, &var, &fault) == 0);
    return var;
}

/* Batches of as many rows as the rank's number says, none among them. */
static void read_rows(ddstore *store, ddstore_var *var)
{
    int64_t rows[200];
    uint8_t got[200 * ROW];
    uint64_t random = (uint64_t)side.rank + 1;
    for (size_t most = 0; most <= 60; most += 20) {
        size_t n = most * (size_t)side.rank;
        for (size_t i = 0; i < n; i++)
            rows[i] = (int64_t)(next_random(&random) % (RANKS * ROWS));
        CHECK(ddstore_get_batch(var, rows, n, got, &fault) == 0);
        CHECK(batch_is(got, rows, n, ROW, SEED));
    }
    ddstore_run runs[] = {{30, 60}, {5, 0}, {2, 7}};
    CHECK(ddstore_get_runs(var, runs, 3, got, &fault) == 0);
    CHECK(rows_are(got, 30, 60, ROW, SEED) &&
          rows_are(got + 60 * ROW, 2, 7, ROW, SEED));
    for (int r = 0; r < RANKS; r++) {
        CHECK(ddstore_get(var, (int64_t)r * ROWS + 3, 5, got, &fault) == 0);
        CHECK(rows_are(got, (int64_t)r * ROWS + 3, 5, ROW, SEED));
    }
    CHECK(ddstore_epoch(store, &fault) == 0);
}

static void bad_rows(ddstore *store, ddstore_var *var)
{
    int64_t rows[2] = {1, side.rank == 1 ? RANKS * ROWS : 50};
    uint8_t got[2 * ROW];
    CHECK_FAILS(ddstore_get_batch(var, rows, 2, got, &fault), DDSTORE_EINDEX, "rank 1",
                "120");
    read_rows(store, var);
}

static void read_hangs(ddstore *store, ddstore_var *var)
{
    uint8_t *got = malloc(ROW);
    int64_t begin = ddstore__now_ns();
    CHECK(ddstore_epoch(store, &fault) == 0);
    atomic_store(&board->hang_read, 1);
    if (side.rank == 0) {
        CHECK_FAILS(ddstore_get(var, 2 * ROWS, 1, got, &fault), DDSTORE_EPEER, "rank 2",
                    "may still arrive");
        CHECK(fault.late == 1 && late == got && seconds_since(begin) < 10);
        late[0] = 1;
    }
    CHECK_FAILS(ddstore_get(var, RANKS * ROWS, 1, got, &fault), DDSTORE_EINDEX, "120");
    CHECK(fault.late == 0);
    free(got);
}

/* A batch of which the exchange hangs, or doesn't begin: what it was to write stays. */
static void exchange_ends_badly(ddstore *store, ddstore_var *var)
{
    int64_t rows[60];
    uint8_t got[60 * ROW];
    int want = atomic_load(&board->fail_exchange) ? DDSTORE_EFABRIC : DDSTORE_ETIMEDOUT;
    for (int i = 0; i < 60; i++)
        rows[i] = 2 * i;
    int rc = ddstore_get_batch(var, rows, 60, got, &fault);
    CHECK(rc == want || (want == DDSTORE_ETIMEDOUT && rc == DDSTORE_ECLOSED));
    CHECK(side.kind == EXCHANGE && fault.late == 0);
    for (int r = 0; r < RANKS; r++)
        memset(side.to + side.to_at[r], 0xee, (size_t)side.to_bytes[r]);
    CHECK(ddstore_get_batch(var, rows, 60, got, &fault) < 0);
    ddstore_close(store);
    for (int r = 0; r < RANKS; r++)
        memset(side.to + side.to_at[r], 0xee, (size_t)side.to_bytes[r]);
}

static void one_frees(ddstore *store, ddstore_var *var)
{
    if (side.rank == 1)
        CHECK_FAILS(ddstore_meet_to_free(store, &fault), DDSTORE_ECONFLICT,
                    "rank 1 and rank 0", "(free and get_batch)");
    else
        CHECK_FAILS(ddstore_get_batch(var, NULL, 0, NULL, &fault), DDSTORE_ECLOSED,
                    "rank 1 frees its store");
    read_rows(store, var);
    CHECK(ddstore_meet_to_free(store, &fault) == 0);
}

typedef struct task {
    int rank;
    void (*run)(ddstore *store, ddstore_var *var);
    bool closes;
} task;

static void rank_main(int fd, void *arg)
{
    const task *t = arg;
    side = (struct side){.rank = t->rank};
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the others read from here */
    ddstore *store = open_rank();
    ddstore_var *var = add_rows(store);
    t->run(store, var);
    say(fd, 'k');
    (void)hear(fd); /* until all are done */
    if (!t->closes)
        ddstore_close(store);
}

static void on_ranks(void (*run)(ddstore *store, ddstore_var *var), bool closes)
{
    member *at[RANKS];
    for (int r = 0; r < RANKS; r++)
        at[r] = member_start(rank_main, &(task){r, run, closes});
    for (int r = 0; r < RANKS; r++)
        EXPECT(at[r]->fd, 'k');
    for (int r = 0; r < RANKS; r++)
        member_end(at[r]);
}

static int open_board(void **state)
{
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : setup(state);
}

static int close_board(void **state)
{
    munmap(board, sizeof(*board));
    return teardown(state);
}

static void rows_come_by_rounds(void **state)
{
    (void)state;
    on_ranks(read_rows, false);
}

static void a_bad_row_fails_all(void **state)
{
    (void)state;
    on_ranks(bad_rows, false);
}

static void a_read_that_hangs_says_that_bytes_may_come(void **state)
{
    (void)state;
    on_ranks(read_hangs, false);
}

static void an_exchange_that_hangs_keeps_its_memory(void **state)
{
    (void)state;
    atomic_store(&board->hang_exchange, 1);
    on_ranks(exchange_ends_badly, true);
}

static void an_exchange_that_fails_keeps_its_memory(void **state)
{
    (void)state;
    atomic_store(&board->fail_exchange, 1);
    on_ranks(exchange_ends_badly, true);
}

static void free_on_one_rank_is_named(void **state)
{
    (void)state;
    on_ranks(one_frees, false);
}

#define ON_BOARD(name) cmocka_unit_test_setup_teardown(name, open_board, close_board)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOARD(rows_come_by_rounds),
        ON_BOARD(a_bad_row_fails_all),
        ON_BOARD(a_read_that_hangs_says_that_bytes_may_come),
        ON_BOARD(an_exchange_that_hangs_keeps_its_memory),
        ON_BOARD(an_exchange_that_fails_keeps_its_memory),
        ON_BOARD(free_on_one_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

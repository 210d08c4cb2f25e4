/* One variable of more than 2^32 rows of one byte, in shards of more than 2^31, and
 * what is read across 2^31 and 2^32. Takes 7 GiB of memory. */
#include "core.h"

#include "memory.h"

#define LIMIT_S 500
#define SHARD   ((int64_t)0x90000000) /* rows; two of them */

static const int64_t edges[] = {0,          0x7fffffff,  0x80000000, SHARD,
                                0xffffffff, 0x100000000, 2 * SHARD};

/* Writes rows that tell their place around each edge; between them there are zeros. */
static void write_edges(core *c, char what)
{
    static uint8_t near[2048];
    (void)what;
    int64_t first = c->rank * SHARD;
    for (size_t i = 0; i < DDSTORE__COUNT(edges); i++) {
        int64_t from = edges[i] - 1024, to = edges[i] + 1024;
        from = from < first ? first : from;
        to = to > first + SHARD ? first + SHARD : to;
        if (from >= to)
            continue;
        fill_rows(near, from, to - from, 1, SEED);
        CHECK(ddstore_update(c->var, near, to - from, from - first, &fault) == 0);
    }
}

static void large_main(int fd, void *arg)
{
    core *c = arg;
    ddstore_shard shard = {SHARD, 1, 1, "|u1", NULL};
    alarm(LIMIT_S);
    c->fd = fd;
    core_open(c);
    CHECK(ddstore_add(c->store, "v", &shard, &c->var, &fault) == 0);
    write_edges(c, 0);
    say(fd, 'k');
    core_serve(c);
    ddstore_close(c->store);
}

static void read_edges(ddstore_var *var)
{
    static uint8_t got[2048];
    static int64_t rows[7 * 64];
    size_t n = 0;
    for (size_t i = 0; i < DDSTORE__COUNT(edges); i++) {
        int64_t from = edges[i] - 1000, to = edges[i] + 1000;
        from = from < 0 ? 0 : from;
        to = to > 2 * SHARD ? 2 * SHARD : to;
        for (int64_t at = from, end; at < to; at = end) { /* a shard at a time */
            end = at < SHARD && to > SHARD ? SHARD : to;
            CHECK(ddstore_get(var, at, end - at, got, &fault) == 0);
            CHECK(rows_are(got, at, end - at, 1, SEED));
        }
        for (int64_t at = edges[i] - 32; at < edges[i] + 32; at++)
            if (at >= 0 && at < 2 * SHARD)
                rows[n++] = at;
    }
    uint64_t random = 4;
    for (size_t i = n; i-- > 1;) {
        size_t j = next_random(&random) % (i + 1);
        int64_t kept = rows[i];
        rows[i] = rows[j];
        rows[j] = kept;
    }
    CHECK(ddstore_get_batch(var, rows, n, got, &fault) == 0);
    CHECK(batch_is(got, rows, n, 1, SEED));
    CHECK_FAILS(ddstore_get(var, 2 * SHARD, 1, got, &fault), DDSTORE_EINDEX, "");
    int64_t beyond = 2 * SHARD;
    CHECK_FAILS(ddstore_get_batch(var, &beyond, 1, got, &fault), DDSTORE_EINDEX, "");
}

static void rows_beyond_2_to_the_32(void **state)
{
    (void)state;
    core_spec spec = {.size = 2};
    member *m[2];
    alarm(LIMIT_S);
    for (int r = 0; r < 2; r++) {
        core c = {.spec = &spec, .rank = r};
        m[r] = member_start(large_main, &c);
    }
    for (int r = 0; r < 2; r++)
        EXPECT(m[r]->fd, 'k');
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        ddstore_var_info info;
        assert_int_equal(ddstore_info(var, &info), 0);
        assert_true(info.total_rows == 2 * SHARD);
        read_edges(var);
        if (n == 0) { /* one get of more than 2^31 rows */
            uint8_t *all = malloc((size_t)SHARD);
            assert_non_null(all);
            assert_int_equal(ddstore_get(var, SHARD, SHARD, all, &fault), 0);
            assert_true(rows_are(all + SHARD - 1000, 2 * SHARD - 1000, 1000, 1, SEED));
            free(all);
        }
        ddstore_close(store);
    }
    for (int r = 0; r < 2; r++)
        member_end(m[r]);
}

int main(void)
{
    ddstore__memory memory;
    ddstore__memory_read(&memory);
    if (memory.free < 8ull << 30) {
        puts("less than 8 GiB of memory are free");
        return 77;
    }
    const struct CMUnitTest tests[] = {TEST(rows_beyond_2_to_the_32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Rows of a group in processes of its own, read by mapping and over TCP: shapes,
 * batches, neighbours, and lengths beyond every bound. */
#include "core.h"

static const core_spec three = {
    .size = 3, .rows = {100, 0, 57}, .disp = 25, .itemsize = 4, .seed = SEED};

/* Reads all rows over both paths. */
static void read_both_ways(const core_spec *spec)
{
    group g = group_start(spec);
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        ddstore_peer_info info;
        for (int r = 0; r < spec->size; r++) {
            assert_int_equal(ddstore_peer_at(store, r, &info), 0);
            assert_string_equal(info.path, n ? "tcp" : "local");
            assert_int_equal(info.pid, g.at[r]->pid);
        }
        assert_int_equal(ddstore_size(store), spec->size);
        assert_true(all_rows_are(var, spec, SEED));
        for (int r = 0; r < spec->size; r++)
            ORDER(g.at[r], 'u');
        assert_true(all_rows_are(var, spec, SEED + 1)); /* an update is seen whole */
        ddstore_close(store);
        group_end(&g);
        if (!n)
            g = group_start(spec);
    }
}

static void unequal_shards(void **state)
{
    (void)state;
    read_both_ways(&three);
}

static void single_bytes(void **state)
{
    (void)state;
    core_spec spec = {
        .size = 2, .rows = {70001, 3}, .disp = 1, .itemsize = 1, .seed = SEED};
    read_both_ways(&spec);
}

static void rows_without_bytes(void **state)
{
    (void)state;
    core_spec spec = {
        .size = 2, .rows = {5, 6}, .disp = 0, .itemsize = 4, .seed = SEED};
    read_both_ways(&spec);
}

static void no_rows_at_all(void **state)
{
    (void)state;
    core_spec spec = {.size = 2, .disp = 3, .itemsize = 4, .seed = SEED};
    read_both_ways(&spec);
}

static void boundaries_are_told(void **state)
{
    (void)state;
    uint8_t got[20000];
    group g = group_start(&three);
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        CHECK_FAILS(ddstore_get(var, 99, 2, got, &fault), DDSTORE_EINVAL, "row 100",
                    "rank 0");
        assert_int_equal(ddstore_get(var, 99, 1, got, &fault), 0);
        assert_int_equal(ddstore_get(var, 100, 57, got, &fault), 0);
        assert_int_equal(ddstore_get(var, 157, 0, got, &fault), 0);
        CHECK_FAILS(ddstore_get(var, 157, 1, got, &fault), DDSTORE_EINDEX, "157 rows");
        int64_t rows[] = {0, 99, 100, 156, 157};
        CHECK_FAILS(ddstore_get_batch(var, rows, 5, got, &fault), DDSTORE_EINDEX,
                    "index 157", "157 rows");
        assert_int_equal(ddstore_get_batch(var, rows, 4, got, &fault), 0);
        assert_true(batch_is(got, rows, 4, 100, SEED));
        assert_int_equal(ddstore_get_batch(var, rows, 0, got, &fault), 0);
        CHECK_FAILS(ddstore_update(var, got, 1, 0, &fault), DDSTORE_EINVAL,
                    "extra member");
        ddstore_close(store);
    }
    group_end(&g);
}

static void repeats_and_orders(void **state)
{
    (void)state;
    group g = group_start(&three);
    static int64_t rows[3000];
    static uint8_t got[3000 * 100];
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        uint64_t random = n;
        for (int round = 0; round < 60; round++) {
            size_t count = next_random(&random) % DDSTORE__COUNT(rows);
            for (size_t i = 0; i < count; i++)
                rows[i] = round == 0   ? 42 /* the same row over and over */
                          : round == 1 ? (int64_t)(156 - i % 157)
                          : round == 2 ? (int64_t)(i % 157)
                                       : (int64_t)(next_random(&random) % 157);
            memset(got, 0, sizeof(got));
            assert_int_equal(ddstore_get_batch(var, rows, count, got, &fault), 0);
            assert_true(batch_is(got, rows, count, 100, SEED));
        }
        ddstore_close(store);
    }
    group_end(&g);
}

/* Runs of any length, also across shards, none and overlapping, beside a batch of all
 * their rows. */
static void runs_are_batches(void **state)
{
    (void)state;
    group g = group_start(&three);
    static int64_t rows[3000];
    static uint8_t got[3000 * 100];
    ddstore_run runs[60];
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        uint64_t random = n;
        for (int round = 0; round < 60; round++) {
            size_t count = next_random(&random) % DDSTORE__COUNT(runs), total = 0;
            for (size_t i = 0; i < count; i++) {
                int64_t row = (int64_t)(next_random(&random) % 158);
                int64_t most = 158 - row < 40 ? 158 - row : 40;
                runs[i].row = row;
                runs[i].rows = (int64_t)(next_random(&random) % (uint64_t)most);
                for (int64_t j = 0; j < runs[i].rows; j++)
                    rows[total++] = row + j;
            }
            memset(got, 0, sizeof(got));
            assert_int_equal(ddstore_get_runs(var, runs, count, got, &fault), 0);
            assert_true(batch_is(got, rows, total, 100, SEED));
            assert_int_equal(total == 3000 ? 0 : got[total * 100], 0);
        }
        const ddstore_run bad[][2] = {
            {{3, 4}, {150, 8}}, {{0, 1}, {158, 0}},       {{3, 4}, {-1, 2}},
            {{3, 4}, {5, -1}},  {{3, 4}, {5, INT64_MAX}},
        };
        for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
            CHECK_FAILS(ddstore_get_runs(var, bad[i], 2, got, &fault), DDSTORE_EINDEX,
                        "run 1", "157 rows");
        ddstore_close(store);
    }
    group_end(&g);
}

/* More runs than one request holds, so that several follow each other to one peer. */
static void batches_of_70000_runs(void **state)
{
    (void)state;
    core_spec spec = {
        .size = 2, .rows = {150000, 150000}, .disp = 3, .itemsize = 1, .seed = SEED};
    const size_t n = 140000;
    int64_t *rows = malloc(n * sizeof(*rows));
    uint8_t *got = malloc(n * 3);
    group g = group_start(&spec);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    for (size_t i = 0; i < n; i++)
        rows[i] = (int64_t)i * 2; /* 75,000 apart in the first shard, then the second */
    assert_int_equal(ddstore_get_batch(var, rows, n, got, &fault), 0);
    assert_true(batch_is(got, rows, n, 3, SEED));
    for (size_t i = 0; i < n; i++)
        rows[i] = 299999 - (int64_t)i * 2;
    assert_int_equal(ddstore_get_batch(var, rows, n, got, &fault), 0);
    assert_true(batch_is(got, rows, n, 3, SEED));
    ddstore_close(store);
    group_end(&g);
    free(rows);
    free(got);
}

static void a_million_bytes_in_a_batch(void **state)
{
    (void)state;
    core_spec spec = {.size = 2,
                      .rows = {1 << 19, (1 << 19) + 5},
                      .disp = 1,
                      .itemsize = 1,
                      .seed = SEED};
    const size_t n = 1 << 20;
    int64_t *rows = malloc(n * sizeof(*rows));
    uint8_t *got = malloc(n);
    group g = group_start(&spec);
    for (size_t path = 0; path <= 1; path++) {
        ddstore *store = extra_open(by_tcp, path);
        ddstore_var *var = extra_join(store, "v");
        uint64_t random = 9;
        for (size_t i = 0; i < n; i++)
            rows[i] = (int64_t)i;
        assert_int_equal(ddstore_get_batch(var, rows, n, got, &fault), 0);
        assert_true(rows_are(got, 0, (int64_t)n, 1, SEED));
        for (size_t i = 0; i < n; i++)
            rows[i] = (int64_t)(next_random(&random) % n);
        memset(got, 0, n);
        assert_int_equal(ddstore_get_batch(var, rows, n, got, &fault), 0);
        assert_true(batch_is(got, rows, n, 1, SEED));
        ddstore_close(store);
    }
    group_end(&g);
    free(rows);
    free(got);
}

static void rows_longer_than_one_network_read(void **state)
{
    (void)state;
    core_spec spec = {
        .size = 2, .rows = {2, 3}, .disp = 3 << 20, .itemsize = 1, .seed = SEED};
    const ddstore_setting small[] = {{"DDSTORE_SHM", "0"},
                                     {"DDSTORE_MAX_READ_BYTES", "4096"}};
    group g = group_start(&spec);
    ddstore *store = extra_open(small, 2);
    assert_true(all_rows_are(extra_join(store, "v"), &spec, SEED));
    ddstore_close(store);
    group_end(&g);
}

#define THREADS 4

struct shared {
    ddstore_var *var;
    uint64_t random;
    bool good;
};

static void *read_along(void *arg)
{
    struct shared *s = arg;
    int64_t rows[64];
    uint8_t got[64 * 100];
    ddstore_error mine;
    s->good = true;
    for (int round = 0; round < 200 && s->good; round++) {
        for (int i = 0; i < 64; i++)
            rows[i] = (int64_t)(next_random(&s->random) % 157);
        s->good = ddstore_get_batch(s->var, rows, 64, got, &mine) == 0 &&
                  batch_is(got, rows, 64, 100, SEED);
    }
    return NULL;
}

static void threads_read_side_by_side(void **state)
{
    (void)state;
    group g = group_start(&three);
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        struct shared s[THREADS];
        pthread_t thread[THREADS];
        ddstore_var *var = extra_join(store, "v");
        for (int i = 0; i < THREADS; i++) {
            s[i] = (struct shared){var, (uint64_t)i, false};
            pthread_create(&thread[i], NULL, read_along, &s[i]);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(thread[i], NULL);
            assert_true(s[i].good);
        }
        ddstore_close(store);
    }
    group_end(&g);
}

/* A core rank reads as well: its own rows in place, the others' as asked for. */
static void read_in_core(core *c, char what)
{
    (void)what;
    CHECK(all_rows_are(c->var, c->spec, SEED));
    ddstore_profile p;
    CHECK(ddstore_get_profile(c->var, &p) == 0);
    uint64_t own = (uint64_t)c->spec->rows[c->rank], all = (uint64_t)total_of(c->spec);
    CHECK(p.rows == 2 * all && p.bytes == p.rows * row_bytes_of(c->spec));
    bool far = c->spec->n_settings == 2;
    CHECK(p.rows_local == (far ? 2 * own : 2 * all));
    CHECK(p.rows_tcp == (far ? 2 * (all - own) : 0));
}

static void core_members_read_each_other(void **state)
{
    (void)state;
    static const ddstore_setting settings[] = {{"DDSTORE_PROFILE", "1"},
                                               {"DDSTORE_SHM", "0"}};
    for (size_t n = 1; n <= 2; n++) {
        core_spec spec = three;
        spec.method = (int)n;
        spec.settings = settings;
        spec.n_settings = n;
        spec.body = read_in_core;
        group g = group_start(&spec);
        for (int r = 0; r < 3; r++)
            say(g.at[r]->fd, 'r'); /* all at once */
        for (int r = 0; r < 3; r++)
            EXPECT(g.at[r]->fd, 'k');
        group_end(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(unequal_shards),
        TEST(single_bytes),
        TEST(rows_without_bytes),
        TEST(no_rows_at_all),
        TEST(boundaries_are_told),
        TEST(repeats_and_orders),
        TEST(runs_are_batches),
        TEST(batches_of_70000_runs),
        TEST(a_million_bytes_in_a_batch),
        TEST(rows_longer_than_one_network_read),
        TEST(threads_read_side_by_side),
        TEST(core_members_read_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

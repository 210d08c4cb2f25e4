/* Freeing a store while others use it: waits end at once, running reads are finished.
 */
#include "core.h"

static const core_spec one = {
    .size = 1, .rows = {20000}, .disp = 100, .itemsize = 1, .seed = SEED};

static ddstore *store;
static ddstore_var *var;

static void *free_soon(void *arg)
{
    sleep_ms(*(int *)arg);
    ddstore_free(store);
    return NULL;
}

static void a_read_that_waits_ends_at_once(void **state)
{
    (void)state;
    uint8_t row[100];
    int wait_ms = 300;
    group g = group_start(&one);
    pthread_t thread;
    store = extra_open(by_tcp, 1);
    var = extra_join(store, "v");
    member_stop(g.at[0]);
    pthread_create(&thread, NULL, free_soon, &wait_ms);
    int64_t since = ddstore__now_ns();
    CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_ECLOSED, "freed");
    assert_true(seconds_since(since) < 10); /* the deadline is 60 */
    pthread_join(thread, NULL);
    assert_true(seconds_since(since) < 20);
    ddstore_close(store);
    kill(g.at[0]->pid, SIGCONT);
    group_end(&g);
}

static atomic_int reads, wrong;

static void *read_until_closed(void *arg)
{
    (void)arg;
    int64_t rows[50];
    uint8_t got[50 * 100];
    uint64_t random = (uint64_t)(uintptr_t)&rows;
    ddstore_error mine;
    for (;;) {
        for (int i = 0; i < 50; i++)
            rows[i] = (int64_t)(next_random(&random) % 20000);
        int rc = ddstore_get_batch(var, rows, 50, got, &mine);
        if (rc == DDSTORE_ECLOSED)
            return NULL;
        if (rc || !batch_is(got, rows, 50, 100, SEED))
            atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&reads, 1);
    }
}

static void readers_all_end(void **state)
{
    (void)state;
    group g = group_start(&one);
    for (int round = 0; round < 10; round++) {
        pthread_t thread[4], freer;
        int wait_ms = 5 * round;
        atomic_store(&reads, 0);
        atomic_store(&wrong, 0);
        store = extra_open(by_tcp, (size_t)round % 2);
        var = extra_join(store, "v");
        for (int i = 0; i < 4; i++)
            pthread_create(&thread[i], NULL, read_until_closed, NULL);
        pthread_create(&freer, NULL, free_soon, &wait_ms);
        for (int i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        pthread_join(freer, NULL);
        ddstore_close(store);
        assert_int_equal(atomic_load(&wrong), 0);
    }
    group_end(&g);
}

static void *free_now(void *arg)
{
    (void)arg;
    ddstore_free(store);
    return NULL;
}

static void freed_by_many_at_once(void **state)
{
    (void)state;
    group g = group_start(&one);
    for (int round = 0; round < 20; round++) {
        pthread_t thread[4];
        store = extra_open(NULL, 0);
        var = extra_join(store, "v");
        for (int i = 0; i < 4; i++)
            pthread_create(&thread[i], NULL, free_now, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        ddstore_close(store);
    }
    group_end(&g);
}

/* A core that is freed while it is read from all sides. */
static void read_while_the_core_is_freed(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        group g = group_start(&one);
        pthread_t thread[3];
        atomic_store(&wrong, 0);
        store = extra_open(by_tcp, (size_t)round % 2);
        var = extra_join(store, "v");
        for (int i = 0; i < 3; i++)
            pthread_create(&thread[i], NULL, read_until_closed, NULL);
        sleep_ms(30);
        ORDER(g.at[0], 'f');
        for (int i = 0; i < 3; i++)
            pthread_join(thread[i], NULL);
        assert_int_equal(atomic_load(&wrong), 0);
        ddstore_close(store);
        group_end(&g);
    }
}

/* A collective that waits for a member that doesn't come. */
static void add_alone(core *c, char what)
{
    ddstore_shard shard = {1, 1, 1, "x", "1"};
    if (what == 'a' && c->rank == 0) {
        pthread_t thread;
        int wait_ms = 300;
        store = c->store;
        pthread_create(&thread, NULL, free_soon, &wait_ms);
        int64_t since = ddstore__now_ns();
        CHECK_FAILS(ddstore_add(c->store, "w", &shard, NULL, &fault), DDSTORE_ECLOSED,
                    "");
        CHECK(seconds_since(since) < 20);
        pthread_join(thread, NULL);
    }
}

static void a_waiting_collective_ends(void **state)
{
    (void)state;
    core_spec spec = one;
    spec.size = 2;
    spec.rows[1] = 5;
    spec.body = add_alone;
    group g = group_start(&spec);
    ORDER(g.at[0], 'a');
    group_end(&g);
}

static void three_stores_of_one_core(void **state)
{
    (void)state;
    static const char *const ns[] = {"train", "valid", "test"};
    core c[3];
    core_spec spec[3];
    uint8_t row[100];
    for (int i = 0; i < 3; i++) {
        spec[i] = one;
        spec[i].ns = ns[i];
        spec[i].method = 1;
        c[i] = (core){.spec = &spec[i]};
        core_open(&c[i]);
        core_add(&c[i], "v", (uint8_t)(SEED + i));
    }
    for (int i = 0; i < 3; i++)
        assert_true(all_rows_are(c[i].var, &spec[i], (uint8_t)(SEED + i)));
    ddstore_free(c[1].store);
    CHECK_FAILS(ddstore_get(c[1].var, 0, 1, row, &fault), DDSTORE_ECLOSED, "");
    assert_true(all_rows_are(c[0].var, &spec[0], SEED));
    ddstore_close(c[0].store);
    assert_true(all_rows_are(c[2].var, &spec[2], SEED + 2));
    ddstore_close(c[1].store);
    ddstore_close(c[2].store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_read_that_waits_ends_at_once), TEST(readers_all_end),
        TEST(freed_by_many_at_once),          TEST(read_while_the_core_is_freed),
        TEST(a_waiting_collective_ends),      TEST(three_stores_of_one_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

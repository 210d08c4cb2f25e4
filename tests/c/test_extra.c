/* Extra members: before, during and after a core group's life, and what tells them. */
#include "raw.h"

static const core_spec two = {
    .size = 2, .rows = {30, 40}, .disp = 100, .itemsize = 1, .seed = SEED};

static ddstore *store;
static ddstore_var *var;

static int begin(void **state)
{
    store = NULL;
    return setup(state);
}

static int end(void **state)
{
    ddstore_close(store);
    return teardown(state);
}

static void *join_v(void *arg)
{
    ddstore_error mine = {0};
    int rc = ddstore_join(store, "v", arg, &mine);
    return rc ? strdup(mine.message) : NULL;
}

static void joins_before_the_core_begins(void **state)
{
    (void)state;
    pthread_t thread;
    void *failed;
    group g = group_fork(&two);
    rmdir(dir); /* and before the directory is there */
    store = extra_open(NULL, 0);
    assert_int_equal(ddstore_rank(store), -1);
    assert_int_equal(ddstore_size(store), 0);
    pthread_create(&thread, NULL, join_v, &var);
    sleep_ms(300);
    group_go(&g);
    pthread_join(thread, &failed);
    if (failed)
        fail_msg("%s", (char *)failed);
    assert_true(all_rows_are(var, &two, SEED));
    group_end(&g);
}

static void many_come_and_go(void **state)
{
    (void)state;
    group g = group_start(&two);
    int here = 0, there = 0;
    for (int i = 0; i < 30; i++) {
        store = extra_open(by_tcp, (size_t)i % 2);
        assert_true(all_rows_are(extra_join(store, "v"), &two, SEED));
        ddstore_close(store);
        store = NULL;
        if (i == 9) {
            here = count_fds(getpid());
            there = count_fds(g.at[0]->pid);
        }
    }
    assert_int_equal(count_fds(getpid()), here); /* and leave nothing behind */
    for (int i = 0; i < 100 && count_fds(g.at[0]->pid) > there; i++)
        sleep_ms(50);
    assert_true(count_fds(g.at[0]->pid) <= there);
    group_end(&g);
}

static void the_number_of_core_ranks_is_checked(void **state)
{
    (void)state;
    group g = group_start(&two);
    ddstore_options options = {.struct_bytes = sizeof(options),
                               .method = 2,
                               .handshake_dir = dir,
                               .n_core = 3};
    assert_int_equal(ddstore_open_extra(&options, &store, &fault), 0);
    CHECK_FAILS(ddstore_join(store, "v", &var, &fault), DDSTORE_EINVAL, "3", "2 ranks");
    ddstore_close(store);
    options.n_core = 2;
    assert_int_equal(ddstore_open_extra(&options, &store, &fault), 0);
    assert_true(all_rows_are(extra_join(store, "v"), &two, SEED));
    assert_int_equal(ddstore_size(store), 2);
    group_end(&g);
}

static void what_is_not_there_is_told_in_time(void **state)
{
    (void)state;
    static const ddstore_setting soon[] = {{"DDSTORE_HANDSHAKE_TIMEOUT_S", "0.4"}};
    group g = group_fork(&two);
    store = extra_open(soon, 1);
    int64_t since = ddstore__now_ns();
    CHECK_FAILS(ddstore_join(store, "v", &var, &fault), DDSTORE_ETIMEDOUT, "variable v",
                dir, "there is no v.bin", "DDSTORE_HANDSHAKE_TIMEOUT_S");
    assert_true(seconds_since(since) > 0.3 && seconds_since(since) < 20);
    CHECK_FAILS(ddstore_join(store, "", &var, &fault), DDSTORE_EINVAL, "");
    int alive;
    CHECK_FAILS(ddstore_core_alive(store, &alive, &fault), DDSTORE_EINVAL, "joined");
    group_go(&g);
    CHECK_FAILS(ddstore_join(store, "w", &var, &fault), DDSTORE_ETIMEDOUT,
                "variable w");
    assert_true(all_rows_are(extra_join(store, "v"), &two, SEED));
    group_end(&g);
}

static void an_extra_member_adds_nothing(void **state)
{
    (void)state;
    ddstore_shard shard = {1, 1, 1, "", "x"};
    ddstore_var_info info;
    void *data;
    uint64_t bytes;
    ddstore_view *view;
    group g = group_start(&two);
    store = extra_open(NULL, 0);
    var = extra_join(store, "v");
    CHECK_FAILS(ddstore_add(store, "w", &shard, NULL, &fault), DDSTORE_EINVAL, "extra");
    CHECK_FAILS(ddstore_view_open(var, &data, &bytes, &view, &fault), DDSTORE_EINVAL,
                "extra");
    assert_int_equal(ddstore_info(var, &info), 0);
    assert_true(info.total_rows == 70 && info.local_rows == 0 && info.row_bytes == 100);
    assert_string_equal(info.dtype, "x");
    assert_ptr_equal(ddstore_find(store, "v"), var);
    group_end(&g);
}

static void deleted_records_are_asked_for(void **state)
{
    (void)state;
    char path[100];
    group g = group_start(&two);
    snprintf(path, sizeof(path), "%s/v.bin", dir);
    assert_int_equal(unlink(path), 0);
    store = extra_open(NULL, 0);
    assert_true(all_rows_are(extra_join(store, "v"), &two, SEED));
    FILE *f = fopen(path, "w"); /* nor does rubbish in its place mislead anyone */
    chmod(path, 0600);
    fputs("rubbish", f);
    fclose(f);
    ddstore *second = extra_open(by_tcp, 1);
    assert_true(all_rows_are(extra_join(second, "v"), &two, SEED));
    ddstore_close(second);
    group_end(&g);
}

static void a_freed_core_is_closed(void **state)
{
    (void)state;
    uint8_t row[100];
    int64_t index = 3;
    for (size_t n = 0; n <= 1; n++) {
        int alive = 0;
        group g = group_start(&two);
        store = extra_open(by_tcp, n);
        var = extra_join(store, "v");
        assert_true(all_rows_are(var, &two, SEED));
        assert_int_equal(ddstore_core_alive(store, &alive, &fault), 0);
        assert_int_equal(alive, 1);
        ORDER(g.at[0], 'f');
        ORDER(g.at[1], 'f');
        CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_ECLOSED, "rank 0",
                    "freed");
        CHECK_FAILS(ddstore_get(var, 69, 1, row, &fault), DDSTORE_ECLOSED, "rank 1");
        CHECK_FAILS(ddstore_get_batch(var, &index, 1, row, &fault), DDSTORE_ECLOSED,
                    "rank 0");
        assert_int_equal(ddstore_core_alive(store, &alive, &fault), 0);
        assert_int_equal(alive, 0);
        char path[100];
        snprintf(path, sizeof(path), "%s/v.bin", dir);
        assert_int_not_equal(access(path, F_OK), 0); /* it took its record along */
        group_end(&g);
        CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_ECLOSED, "rank 0");
        ddstore_close(store);
        store = NULL;
    }
}

static inline void await_sigterm(core *c, char what)
{
    (void)c, (void)what;
    ddstore_announce_sigterm();
}

/* SIGTERM: readers are told that the store closes, not that a member was lost. */
static inline void sigterm_is_a_proper_end(void **state)
{
    (void)state;
    uint8_t row[100];
    core_spec spec = two;
    spec.body = await_sigterm;
    for (size_t n = 0; n <= 1; n++) {
        group g = group_start(&spec);
        ORDER(g.at[1], 's');
        store = extra_open(by_tcp, n);
        var = extra_join(store, "v");
        assert_true(all_rows_are(var, &two, SEED));
        kill(g.at[1]->pid, SIGTERM);
        int64_t since = ddstore__now_ns();
        int rc = 0;
        while (!rc && seconds_since(since) < 20)
            rc = ddstore_get(var, 69, 1, row, &fault);
        assert_int_equal(rc, DDSTORE_ECLOSED);
        assert_non_null(strstr(fault.message, "rank 1"));
        int status = member_wait(g.at[1]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
        CHECK_FAILS(ddstore_get(var, 69, 1, row, &fault), DDSTORE_ECLOSED, "rank 1");
        assert_int_equal(ddstore_get(var, 0, 1, row, &fault), 0);
        ddstore_close(store);
        store = NULL;
        group_end(&g);
    }
}

/* A new run in the same directory: joined again, it gives its rows and never the old.
 */
static void a_new_run_is_joined(void **state)
{
    (void)state;
    core_spec spec[8];
    group g[8];
    uint8_t row[100];
    for (size_t n = 0; n <= 1; n++) {
        for (int run = 0; run < 8; run++) {
            spec[run] = two;
            spec[run].seed = (uint8_t)(SEED + 3 * run);
            spec[run].rows[0] = 30 + run;
            g[run] = group_fork(&spec[run]);
        }
        store = extra_open(by_tcp, n);
        ddstore_var *old = NULL;
        for (int run = 0; run < 8; run++) {
            group_go(&g[run]);
            var = extra_join(store, "v");
            assert_true(all_rows_are(var, &spec[run], spec[run].seed));
            if (old) { /* what was joined before stays what it was: over */
                int rc = ddstore_get(old, 0, 1, row, &fault);
                assert_true(rc == DDSTORE_EPEER || rc == DDSTORE_ECLOSED);
                assert_ptr_not_equal(old, var);
                assert_ptr_equal(ddstore_find(store, "v"), var);
            }
            old = var;
            for (int r = 0; r < 2 && run % 2; r++)
                member_kill(g[run].at[r]);
            group_end(&g[run]);
        }
        ddstore_close(store);
        store = NULL;
    }
}

static void a_killed_runs_record_is_not_taken(void **state)
{
    (void)state;
    static const ddstore_setting soon[] = {{"DDSTORE_HANDSHAKE_TIMEOUT_S", "0.5"}};
    core_spec spec = two;
    spec.seed = SEED + 9;
    group g = group_start(&two), next = group_fork(&spec);
    for (int r = 0; r < 2; r++)
        member_kill(g.at[r]);
    store = extra_open(soon, 1);
    CHECK_FAILS(ddstore_join(store, "v", &var, &fault), DDSTORE_ETIMEDOUT,
                "variable v");
    pthread_t thread;
    void *failed;
    ddstore_close(store);
    store = extra_open(NULL, 0);
    pthread_create(&thread, NULL, join_v, &var);
    sleep_ms(200);
    group_go(&next);
    pthread_join(thread, &failed);
    if (failed)
        fail_msg("%s", (char *)failed);
    assert_true(all_rows_are(var, &spec, SEED + 9));
    group_end(&next);
}

static int stop_soon(void *arg)
{
    return ++*(int *)arg > 5;
}

static void a_waiting_join_is_interrupted(void **state)
{
    (void)state;
    int calls = 0;
    store = extra_open(NULL, 0);
    ddstore_set_interrupt(stop_soon, &calls);
    CHECK_FAILS(ddstore_join(store, "v", &var, &fault), DDSTORE_EINTR, "interrupted");
}

static void *free_soon(void *arg)
{
    sleep_ms(200);
    ddstore_free(arg);
    return NULL;
}

static void a_waiting_join_ends_when_freed(void **state)
{
    (void)state;
    pthread_t thread;
    store = extra_open(NULL, 0);
    pthread_create(&thread, NULL, free_soon, store);
    int64_t since = ddstore__now_ns();
    CHECK_FAILS(ddstore_join(store, "v", &var, &fault), DDSTORE_ECLOSED, "freed");
    assert_true(seconds_since(since) < 20);
    pthread_join(thread, NULL);
}

static void names_of_every_kind_are_joined(void **state)
{
    (void)state;
    static char longest[1025];
    memset(longest, 'l', sizeof(longest) - 1);
    static const char *const names[] = {
        "a/b", "a_b", "a.b", "..", "\xc3\xa4 \xf0\x9f\x98\x80", longest};
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++) {
        core_spec spec = two;
        spec.size = 1;
        spec.name = names[i];
        group g = group_start(&spec);
        store = extra_open(NULL, 0);
        assert_true(all_rows_are(extra_join(store, names[i]), &spec, SEED));
        ddstore_close(store);
        store = NULL;
        group_end(&g);
    }
}

/* A descriptor that names other memory, or none: it is read over the network, or
 * refused, and never gives other rows. */
static void publish_forged(const ddstore__variable_record *r)
{
    char path[100];
    ddstore__buffer b = {0};
    ddstore__record_encode(r, &b);
    snprintf(path, sizeof(path), "%s/v.bin", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.bytes, f), b.bytes);
    fclose(f);
    free(b.data);
}

static void add_other(core *c, char what)
{
    (void)what;
    core_add(c, "w", SEED + 50);
}

static void forged_descriptors_give_no_other_rows(void **state)
{
    (void)state;
    static char said[512];
    core_spec spec = two;
    spec.body = add_other;
    group g = group_start(&spec);
    for (int r = 0; r < 2; r++)
        say(g.at[r]->fd, 'w');
    for (int r = 0; r < 2; r++)
        EXPECT(g.at[r]->fd, 'k');
    ddstore__variable_record right = record_of("v.bin"), other = record_of("w.bin");
    for (int kind = 0; kind < 6; kind++) {
        ddstore__rank_record kept = right.rank[1];
        ddstore__descriptor *d = &right.rank[1].at;
        if (kind == 0)
            d->token[5] ^= 1; /* not the memory that was meant */
        if (kind == 1)
            d->fd = other.rank[1].at.fd; /* another variable's */
        if (kind == 2)
            d->fd = 9999;
        if (kind == 3)
            d->fd = 0; /* a socket, a terminal, /dev/null */
        if (kind == 4)
            d->fd = right.rank[1].contact.beacon_fd; /* too short */
        if (kind == 5)
            right.rank[1].contact.beacon_token[0] ^= 1; /* no memory of its is mapped */
        publish_forged(&right);
        store = extra_open(NULL, 0);
        var = extra_join(store, "v");
        assert_true(all_rows_are(var, &spec, SEED));
        ddstore_close(store);
        store = NULL;
        right.rank[1] = kept;
    }
    for (int kind = 0; kind < 2;
         kind++) { /* an id that isn't, or of another variable */
        uint8_t row[100];
        ddstore__rank_record kept = right.rank[1];
        if (kind == 0)
            right.rank[1].at.id ^= 1ull << 40;
        right.rank[1].at.fd = 9999;
        right.rank[1].contact.uid[0] ^= (uint8_t)kind; /* another process */
        publish_forged(&right);
        store = extra_open(NULL, 0);
        var = extra_join(store, "v");
        int rc = ddstore_get(var, 69, 1, row, &fault);
        snprintf(said, sizeof(said), "%d", rc);
        assert_true(rc == DDSTORE_ECLOSED || rc == DDSTORE_EPEER);
        assert_int_equal(ddstore_get(var, 0, 1, row, &fault), 0);
        assert_true(rows_are(row, 0, 1, 100, SEED));
        ddstore_close(store);
        store = NULL;
        right.rank[1] = kept;
    }
    ddstore__record_free(&right);
    ddstore__record_free(&other);
    group_end(&g);
}

static void live_records_are_not_replaced(void **state)
{
    (void)state;
    group g = group_start(&two);
    core_spec other = {.size = 1, .rows = {5}, .disp = 1, .itemsize = 1, .ns = "u"};
    core c = {.spec = &other, .rank = 0};
    ddstore_shard shard = {5, 1, 1, "x", "12345"};
    core_open(&c);
    store = c.store;
    CHECK_FAILS(ddstore_add(store, "v", &shard, &var, &fault), DDSTORE_ECONFLICT,
                "variable v", "namespace t", "process ");
    assert_int_equal(ddstore_add(store, "w", &shard, &var, &fault), 0);
    ddstore *reader = extra_open(NULL, 0);
    assert_true(all_rows_are(extra_join(reader, "v"), &two, SEED));
    ddstore_close(reader);
    group_end(&g);
    assert_int_equal(ddstore_add(store, "v", &shard, &var, &fault),
                     0); /* it is free now */
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(joins_before_the_core_begins),
        TEST(many_come_and_go),
        TEST(the_number_of_core_ranks_is_checked),
        TEST(what_is_not_there_is_told_in_time),
        TEST(an_extra_member_adds_nothing),
        TEST(deleted_records_are_asked_for),
        TEST(a_freed_core_is_closed),
#ifndef __SANITIZE_THREAD__ /* it keeps signals back while a thread waits */
        TEST(sigterm_is_a_proper_end),
#endif
        TEST(a_new_run_is_joined),
        TEST(a_killed_runs_record_is_not_taken),
        TEST(a_waiting_join_is_interrupted),
        TEST(a_waiting_join_ends_when_freed),
        TEST(names_of_every_kind_are_joined),
        TEST(forged_descriptors_give_no_other_rows),
        TEST(live_records_are_not_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

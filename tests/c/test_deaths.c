/* Members that are killed or stand still while others read from them. */
#include "core.h"

#define ROW 3000

static const core_spec three = {
    .size = 3, .rows = {50, 50, 50}, .disp = ROW, .itemsize = 1, .seed = SEED};

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

/* By mapping, or over TCP; with a time-out. */
static void join_by(bool tcp, const char *timeout_s)
{
    const ddstore_setting settings[] = {{"DDSTORE_SHM", tcp ? "0" : "1"},
                                        {"DDSTORE_READ_TIMEOUT_S", timeout_s}};
    ddstore_close(store);
    store = extra_open(settings, 2);
    var = extra_join(store, "v");
}

/* Reads rows of one rank until it fails or the time is over. */
static int read_until(int rank, double limit_s)
{
    uint8_t row[ROW];
    int rc = 0;
    int64_t since = ddstore__now_ns();
    for (int64_t i = 0; !rc && seconds_since(since) < limit_s; i++) {
        fault = (ddstore_error){0};
        rc = ddstore_get(var, rank * 50 + i % 50, 1, row, &fault);
        if (!rc)
            CHECK(rows_are(row, rank * 50 + i % 50, 1, ROW, SEED));
    }
    return rc;
}

/* Ranks 0 and 2 are read as ever; what asks for rows of rank 1 fails and names it. */
static void check_others(void)
{
    static uint8_t got[50 * ROW];
    CHECK(ddstore_get(var, 0, 50, got, &fault) == 0);
    CHECK(rows_are(got, 0, 50, ROW, SEED));
    CHECK(ddstore_get(var, 100, 50, got, &fault) == 0);
    CHECK(rows_are(got, 100, 50, ROW, SEED));
    const int64_t both[] = {3, 103, 49}, with_lost[] = {3, 77, 103};
    CHECK(ddstore_get_batch(var, both, 3, got, &fault) == 0);
    CHECK(batch_is(got, both, 3, ROW, SEED));
    CHECK_FAILS(ddstore_get_batch(var, with_lost, 3, got, &fault), DDSTORE_EPEER,
                "rank 1: process ");
}

static int64_t killed_at;

static void *kill_soon(void *arg)
{
    sleep_ms(150);
    killed_at = ddstore__now_ns();
    kill(*(pid_t *)arg, SIGKILL);
    return NULL;
}

/* Rank 1 is killed while it is read. */
static void kill_and_read(group *g, bool tcp)
{
    char who[64];
    pthread_t killer;
    join_by(tcp, "60");
    assert_true(all_rows_are(var, &three, SEED));
    snprintf(who, sizeof(who), "rank 1: process %d on host ", g->at[1]->pid);
    pthread_create(&killer, NULL, kill_soon, &g->at[1]->pid);
    int rc = read_until(1, 30);
    pthread_join(killer, NULL);
    assert_int_equal(rc, DDSTORE_EPEER);
    assert_true(seconds_since(killed_at) <
                5); /* 1 s on a machine that is not crowded */
    assert_non_null(strstr(fault.message, who));
    int64_t since = ddstore__now_ns();
    assert_int_equal(read_until(1, 30), DDSTORE_EPEER);
    assert_true(seconds_since(since) < 2);
    check_others();
    ddstore_peer_info info;
    int alive = 1;
    assert_int_equal(ddstore_peer_at(store, 1, &info), 0);
    assert_string_equal(info.state, "lost");
    assert_int_equal(ddstore_peer_at(store, 0, &info), 0);
    assert_string_equal(info.state, "alive");
    assert_int_equal(ddstore_core_alive(store, &alive, &fault), 0);
    assert_int_equal(alive, 0);
    (void)member_wait(g->at[1]);
}

static void killed_while_read_by_mapping(void **state)
{
    (void)state;
    group g = group_start(&three);
    kill_and_read(&g, false);
    group_end(&g);
}

static void killed_while_read_over_tcp(void **state)
{
    (void)state;
    group g = group_start(&three);
    kill_and_read(&g, true);
    group_end(&g);
}

static char ended_line[200];
static pthread_t logged_by;

static void note(void *arg, int level, const char *message)
{
    (void)arg, (void)level;
    if (strstr(message, "ended"))
        snprintf(ended_line, sizeof(ended_line), "%s", message);
    logged_by = pthread_self();
}

/* The progress thread sees it first, and has the test's own thread say so. */
static void a_death_is_logged(void **state)
{
    (void)state;
    char who[32];
    group g = group_start(&three);
    join_by(false, "60");
    *ended_line = '\0';
    ddstore_set_logger(note, NULL, DDSTORE_LOG_INFO);
    snprintf(who, sizeof(who), "process %d on ", g.at[1]->pid);
    member_kill(g.at[1]);
    for (int i = 0; i < 200 && !*ended_line; i++)
        (void)ddstore_log_drain(100);
    assert_non_null(strstr(ended_line, who));
    assert_true(pthread_equal(logged_by, pthread_self()));
    ddstore_set_logger(NULL, NULL, 0);
    group_end(&g);
}

/* Children that live on, with nothing of the library's and all else of the parent's. */
static void have_children(core *c, char what)
{
    (void)what;
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, 0);
            alarm(60);
            char self[8];
            CHECK(recv(c->fd, self, 0, MSG_DONTWAIT) <= 0);
            close(c->fd);
            for (;;)
                pause();
        }
        char path[100];
        snprintf(path, sizeof(path), "%s/child.%d", dir, (int)pid);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
}

static void kill_children(void)
{
    char command[200];
    snprintf(command, sizeof(command),
             "for f in %s/child.*; do kill -9 ${f##*.}; rm -f $f; done", dir);
    CHECK(system(command) == 0);
}

static void killed_with_living_children(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        core_spec spec = three;
        spec.body = have_children;
        group g = group_start(&spec);
        ORDER(g.at[1], 'c');
        kill_and_read(&g, tcp != 0);
        kill_children();
        ddstore_close(store);
        store = NULL;
        group_end(&g);
    }
}

static void killed_between_reads(void **state)
{
    (void)state;
    uint8_t row[ROW];
    for (int tcp = 0; tcp < 2; tcp++) {
        group g = group_start(&three);
        join_by(tcp != 0, "60");
        assert_int_equal(ddstore_get(var, 75, 1, row, &fault), 0);
        member_kill(g.at[1]);
        int64_t since = ddstore__now_ns();
        int rc;
        while ((rc = ddstore_get(var, 75, 1, row, &fault)) == 0 &&
               seconds_since(since) < 20)
            ;
        assert_int_equal(rc, DDSTORE_EPEER);
        check_others();
        ddstore_close(store);
        store = NULL;
        group_end(&g);
    }
}

static void killed_before_it_was_ever_read(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        group g = group_start(&three);
        join_by(tcp != 0, "60");
        member_kill(g.at[1]);
        assert_int_equal(read_until(1, 20), DDSTORE_EPEER);
        check_others();
        ddstore_close(store);
        store = NULL;
        group_end(&g);
    }
}

static void a_core_rank_loses_another(void **state)
{
    (void)state;
    group g = group_start(&three);
    join_by(false, "60");
    member_kill(g.at[2]);
    ddstore_close(store);
    store = NULL;
    group_end(&g); /* the others free their stores and end all the same */
}

static void *wake_up(void *arg)
{
    sleep_ms(700);
    kill(*(pid_t *)arg, SIGCONT);
    return NULL;
}

static void standing_still_within_the_deadline_loses_nothing(void **state)
{
    (void)state;
    group g = group_start(&three);
    for (int tcp = 0; tcp < 2; tcp++) {
        pthread_t waker;
        join_by(tcp != 0, "60");
        assert_true(all_rows_are(var, &three, SEED));
        member_stop(g.at[1]);
        pthread_create(&waker, NULL, wake_up, &g.at[1]->pid);
        int64_t since = ddstore__now_ns();
        uint8_t got[ROW];
        assert_int_equal(ddstore_get(var, 60, 1, got, &fault), 0);
        assert_true(rows_are(got, 60, 1, ROW, SEED));
        if (tcp)
            assert_true(seconds_since(since) > 0.3); /* it did wait */
        assert_true(all_rows_are(var, &three, SEED));
        pthread_join(waker, NULL);
        assert_true(all_rows_are(var, &three, SEED));
    }
    group_end(&g);
}

static void mapped_rows_need_no_living_owner_thread(void **state)
{
    (void)state;
    group g = group_start(&three);
    join_by(false, "1");
    member_stop(g.at[1]);
    sleep_ms(1200);
    assert_true(all_rows_are(var, &three, SEED));
    kill(g.at[1]->pid, SIGCONT);
    group_end(&g);
}

static void standing_still_beyond_it_is_lost(void **state)
{
    (void)state;
    uint8_t got[ROW];
    group g = group_start(&three);
    join_by(true, "1");
    assert_true(all_rows_are(var, &three, SEED));
    member_stop(g.at[1]);
    int64_t since = ddstore__now_ns();
    CHECK_FAILS(ddstore_get(var, 60, 1, got, &fault), DDSTORE_EPEER, "rank 1: process ",
                "DDSTORE_READ_TIMEOUT_S");
    assert_true(seconds_since(since) > 0.9 && seconds_since(since) < 20);
    check_others();
    kill(g.at[1]->pid, SIGCONT);
    group_end(&g);
}

/* So many runs that the request itself does not fit the buffers on the way. */
static void a_request_nobody_takes_ends_too(void **state)
{
    (void)state;
    core_spec spec = {
        .size = 1, .rows = {300000}, .disp = 1, .itemsize = 1, .seed = SEED};
    const size_t n = 140000;
    int64_t *rows = malloc(n * sizeof(*rows));
    uint8_t *got = malloc(n);
    group g = group_start(&spec);
    join_by(true, "1");
    for (size_t i = 0; i < n; i++)
        rows[i] = 2 * (int64_t)i;
    member_stop(g.at[0]);
    CHECK_FAILS(ddstore_get_batch(var, rows, n, got, &fault), DDSTORE_EPEER,
                "rank 0: process ", "DDSTORE_READ_TIMEOUT_S");
    kill(g.at[0]->pid, SIGCONT);
    group_end(&g);
    free(rows);
    free(got);
}

/* A short look at a run that stands still must not cost what is read from it. */
static void a_join_while_it_stands_still_loses_nothing(void **state)
{
    (void)state;
    const ddstore_setting settings[] = {{"DDSTORE_SHM", "0"},
                                        {"DDSTORE_HANDSHAKE_TIMEOUT_S", "1"}};
    core_spec spec = three;
    spec.size = 1;
    group g = group_start(&spec);
    store = extra_open(settings, 2);
    var = extra_join(store, "v");
    assert_true(all_rows_are(var, &spec, SEED));
    member_stop(g.at[0]);
    ddstore_var *again;
    CHECK_FAILS(ddstore_join(store, "v", &again, &fault), DDSTORE_ETIMEDOUT,
                "variable v");
    kill(g.at[0]->pid, SIGCONT);
    assert_true(all_rows_are(var, &spec, SEED));
    assert_int_equal(ddstore_join(store, "v", &again, &fault), 0);
    assert_ptr_equal(again, var); /* the same run's */
    group_end(&g);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(killed_while_read_by_mapping),
        TEST(killed_while_read_over_tcp),
        TEST(a_death_is_logged),
        TEST(killed_with_living_children),
        TEST(killed_between_reads),
        TEST(killed_before_it_was_ever_read),
        TEST(a_core_rank_loses_another),
        TEST(standing_still_within_the_deadline_loses_nothing),
        TEST(mapped_rows_need_no_living_owner_thread),
        TEST(standing_still_beyond_it_is_lost),
        TEST(a_request_nobody_takes_ends_too),
        TEST(a_join_while_it_stands_still_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A group's long life and its end: what stays in the directory, late readers, waking.
 */
#include "group_help.h"

#include "rendezvous/exchange_dir.h"

struct many {
    int steps;
    atomic_int most;
};

static void many_barriers(int rank, int size, void *arg)
{
    struct many *m = arg;
    ddstore_comm *comm = open_or_die(rank, size, 60);
    for (int i = 0; i < m->steps; i++) {
        if (ddstore_comm_barrier(comm, NULL))
            abort();
        if (rank == 0 && i % 500 == 499) {
            int n = count_files(shared, NULL);
            if (n > atomic_load(&m->most))
                atomic_store(&m->most, n);
        }
    }
    ddstore_comm_close(comm);
}

static void many_barriers_leave_few_files(void **state)
{
    (void)state;
    struct many m = {.steps = getenv("DDSTORE_TEST_MILLION") ? 1000000 : 20000};
    alarm(m.steps > 20000 ? 3600 : 60);
    unsigned long long before = atomic_load(&ddstore__dir_opens);
    double t = seconds();
    run_threads(2, many_barriers, &m);
    t = seconds() - t;
    double opens = (double)(atomic_load(&ddstore__dir_opens) - before) / m.steps / 2;
    printf("%d barriers: %.1f us each, %.2f opens a member, at most %d files\n",
           m.steps, t / m.steps * 1e6, opens, m.most);
    assert_true(opens <= 4 && m.most <= 6);
    assert_int_equal(count_files(shared, NULL), 0);
}

/* Rank 0 is gone before the others read the last result. */
static int slow_reader(int rank, int size, void *arg)
{
    (void)arg;
    ddstore_comm *comm = open_or_die(rank, size, 20);
    if (rank == 1) { /* stops between contribution and result */
        pid_t me = getpid();
        pid_t helper = fork();
        if (helper == 0) {
            sleep_ms(50);
            kill(me, SIGSTOP);
            sleep_ms(700);
            kill(me, SIGCONT);
            _exit(0);
        }
    }
    if (rank == 0)
        sleep_ms(200);
    int rc = ddstore_comm_barrier(comm, NULL);
    ddstore_comm_close(comm);
    return rc ? 1 : 0;
}

static void the_last_result_outlives_rank_0(void **state)
{
    (void)state;
    pid_t a = start(slow_reader, 0, 2, NULL), b = start(slow_reader, 1, 2, NULL);
    assert_int_equal(finish(a), 0);
    assert_int_equal(count_files(shared, "s."), 1);
    assert_int_equal(finish(b), 0);
    assert_int_equal(count_files(shared, NULL), 0);
}

static int reopen(int rank, int size, void *arg)
{
    (void)arg;
    for (int i = 0; i < 60; i++) {
        ddstore_comm *comm = open_or_die(rank, size, 20);
        if (i % 3 && ddstore_comm_barrier(comm, NULL))
            return 1;
        ddstore_comm_close(comm);
    }
    return 0;
}

static void groups_follow_one_another(void **state)
{
    (void)state;
    pid_t pids[4];
    double t = seconds();
    for (int r = 0; r < 4; r++)
        pids[r] = start(reopen, r, 4, NULL);
    for (int r = 0; r < 4; r++)
        assert_int_equal(finish(pids[r]), 0);
    printf("60 groups of 4, one after the other: %.2f s\n", seconds() - t);
    assert_int_equal(count_files(shared, NULL), 0);
}

struct waker {
    ddstore_comm *comm;
};

static void *wake_later(void *arg)
{
    struct waker *w = arg;
    sleep_ms(150);
    ddstore_comm_wake(w->comm);
    return NULL;
}

static void waits_for_ever(int rank, int size, void *arg)
{
    struct waker w = {open_or_die(rank, size, 40)};
    pthread_t thread;
    atomic_int *codes = arg;
    if (rank == 1) {
        double t = seconds();
        pthread_create(&thread, NULL, wake_later, &w);
        codes[1] = ddstore_comm_barrier(w.comm, NULL);
        pthread_join(thread, NULL);
        codes[2] = seconds() - t < 0.5;
    } else {
        sleep_ms(600);
        codes[0] = ddstore_comm_barrier(w.comm, &board->err[0]);
    }
    ddstore_comm_close(w.comm);
}

static void a_wait_can_be_woken(void **state)
{
    (void)state;
    atomic_int codes[3] = {0};
    run_threads(2, waits_for_ever, codes);
    assert_int_equal(codes[1], DDSTORE_ECLOSED);
    assert_int_equal(codes[2], 1);
    assert_int_equal(codes[0], DDSTORE_EPEER); /* it learns at once */
    assert_true(says(0, "rank 1"));
}

static int stop_at_once(void *arg)
{
    return ++*(int *)arg > 2;
}

static void a_wait_can_be_interrupted(void **state)
{
    (void)state;
    int calls = 0;
    ddstore_comm *comm;
    ddstore_error err;
    ddstore_set_interrupt(stop_at_once, &calls);
    int rc = try_open(1, 2, 30, &comm, &err);
    ddstore_set_interrupt(NULL, NULL);
    assert_int_equal(rc, DDSTORE_EINTR);
    assert_int_equal(count_files(shared, NULL), 0);
}

/* Everything in the directory is removed while a group waits in it. */
static void a_swept_directory_is_filled_again(void **state)
{
    (void)state;
    pid_t pids[2];
    struct plan plan = {.steps = 3};
    pids[1] = start(member, 1, 2, &plan);
    sleep_ms(200);
    char command[160];
    snprintf(command, sizeof(command), "rm -rf %s/*", shared);
    assert_int_equal(system(command), 0);
    pids[0] = start(member, 0, 2, &plan);
    for (int r = 0; r < 2; r++)
        assert_int_equal(finish(pids[r]), 0);
}

/* Rank 0 is killed and started anew: before anybody was proposed, and while one member
 * has acknowledged the dead one's proposal and another hasn't. */
static void a_restarted_leader_is_joined(void **state)
{
    (void)state;
    struct plan plan = {.steps = 3};
    for (int late = 0; late < 2; late++) {
        pid_t pids[3] = {0};
        pids[1] = start(member, 1, 3, &plan);
        if (late) {
            pids[2] = start(member, 2, 3, &plan);
            while (count_files(shared, "h.") < 2)
                sleep_ms(1);
            kill(pids[2], SIGSTOP);
        }
        pid_t first = start(member, 0, 3, &plan);
        sleep_ms(300);
        kill(first, SIGKILL);
        finish(first);
        if (late)
            kill(pids[2], SIGCONT);
        else
            pids[2] = start(member, 2, 3, &plan);
        assert_int_equal(count_files(shared, "a.1."), late);
        pids[0] = start(member, 0, 3, &plan);
        for (int r = 0; r < 3; r++)
            if (finish(pids[r]))
                fail_msg("late %d, rank %d: %s", late, r, board->err[r].message);
    }
    assert_int_equal(count_files(shared, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_barriers_leave_few_files), TEST(the_last_result_outlives_rank_0),
        TEST(groups_follow_one_another),     TEST(a_wait_can_be_woken),
        TEST(a_wait_can_be_interrupted),     TEST(a_swept_directory_is_filled_again),
        TEST(a_restarted_leader_is_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

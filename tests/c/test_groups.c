/* Groups of real processes: who is missing, deaths, duplicates, and restarts over what
 * killed runs left. */
#include "group_help.h"

/* -- who is missing -- */

static void a_timeout_lists_the_missing(void **state)
{
    (void)state;
    struct plan plan = {.timeout_s = 0.7};
    pid_t pids[2] = {start(member, 0, 5, &plan), start(member, 3, 5, &plan)};
    finish(pids[0]), finish(pids[1]);
    assert_int_equal(board->rc[0], DDSTORE_ETIMEDOUT);
    assert_int_equal(board->rc[3], DDSTORE_ETIMEDOUT);
    for (int r = 0; r <= 3; r += 3) {
        assert_true(says(r, "rank 1, rank 2, rank 4"));
        assert_true(says(r, shared));
    }
    finish(start(member, 2, 5, &plan));
    assert_true(says(2, "rank 0, rank 1, rank 3, rank 4"));
    assert_int_equal(count_files(shared, "h."), 0);
}

static void another_launch_is_named(void **state)
{
    (void)state;
    struct plan ours = {.identity = "ours", .timeout_s = 1},
                theirs = {.slot = 4, .identity = "theirs", .timeout_s = 1.5};
    pid_t other = start(member, 1, 2, &theirs);
    sleep_ms(100);
    finish(start(member, 0, 2, &ours));
    finish(other);
    assert_int_equal(board->rc[0], DDSTORE_ETIMEDOUT);
    assert_true(says(0, "rank 1"));
    assert_true(says(0, "theirs"));
    assert_true(says(0, ":%d", (int)other));
}

static void sizes_must_agree(void **state)
{
    (void)state;
    struct plan plan = {0};
    double t = seconds();
    pid_t a = start(member, 0, 2, &plan), b = start(member, 1, 3, &plan);
    finish(a), finish(b);
    assert_true(seconds() - t < 5);
    assert_int_equal(board->rc[0], DDSTORE_EINVAL);
    assert_int_equal(board->rc[1], DDSTORE_EINVAL);
    assert_true(says(0, "rank 1") && says(0, "3 members") && says(0, "of 2"));
}

static int wrong_call(int rank, int size, void *arg)
{
    (void)arg;
    void *data;
    uint64_t offsets[3];
    ddstore_comm *comm = open_or_die(rank, size, 20);
    board->rc[rank] =
        rank ? ddstore_comm_barrier(comm, &board->err[rank])
             : ddstore_comm_allgatherv(comm, "x", 1, &data, offsets, &board->err[rank]);
    ddstore_comm_close(comm);
    return 0;
}

static void calls_must_agree(void **state)
{
    (void)state;
    pid_t a = start(wrong_call, 0, 2, NULL), b = start(wrong_call, 1, 2, NULL);
    finish(a), finish(b);
    assert_int_equal(board->rc[0], DDSTORE_EINVAL);
    assert_int_equal(board->rc[1], DDSTORE_EINVAL);
    assert_true(says(1, "rank 1 calls barrier"));
}

/* -- deaths -- */

static void killed_in_mid_run(int victim, int others_code)
{
    pid_t pids[3];
    struct plan plan = {.steps = 1000000, .hold_ms = 1};
    start_group(pids, 3, &plan);
    while (atomic_load(&board->ready) < 3)
        sleep_ms(5);
    sleep_ms(100);
    double t = seconds();
    kill(pids[victim], SIGKILL);
    for (int r = 0; r < 3; r++)
        finish(pids[r]);
    assert_true(seconds() - t < 8);
    for (int r = 0; r < 3; r++)
        if (r != victim) {
            assert_int_equal(board->rc[r], others_code);
            assert_true(says(r, "rank %d", victim));
            assert_true(says(r, ":%d", (int)pids[victim]));
        }
}

static void a_dead_member_ends_the_group(void **state)
{
    (void)state;
    killed_in_mid_run(2, DDSTORE_EPEER);
}

static void a_dead_leader_ends_the_group(void **state)
{
    (void)state;
    killed_in_mid_run(0, DDSTORE_EPEER);
}

/* Kills members at any moment, a hundred times, then meets anew with another word:
 * nobody ever sees an old one, and nothing is left in the end. */
static void restarts_never_see_old_data(void **state)
{
    (void)state;
    char word[32];
    struct plan plan = {.steps = 1000000, .word = word},
                last = {.steps = 20, .word = word};
    for (int round = 0; round < 100; round++) {
        pid_t pids[3];
        snprintf(word, sizeof(word), "word of run %d", round);
        start_group(pids, 3, &plan);
        sleep_ms(round % 20);
        for (int r = 0; r < 3; r++)
            kill(pids[(r + round) % 3], SIGKILL);
        for (int r = 0; r < 3; r++)
            assert_int_equal(finish(pids[r]), 200 + SIGKILL);
        if (round % 10 != 9)
            continue;
        snprintf(word, sizeof(word), "whole run %d", round);
        double t = seconds();
        start_group(pids, 3, &last);
        for (int r = 0; r < 3; r++)
            if (finish(pids[r]))
                fail_msg("round %d, rank %d: %d %s", round, r, board->rc[r],
                         board->err[r].message);
        assert_true(seconds() - t < 3);
    }
    char claim[128];
    snprintf(claim, sizeof(claim), "%s/s0.claim", shared);
    assert_int_not_equal(access(claim, F_OK), 0);
    /* At most young temporary files, and claims of killed runs that a run moved away
     * just before it was killed. */
    assert_true(count_files(shared, NULL) < 40);
}

/* -- two groups -- */

static void twins_without_identity_both_fail(void **state)
{
    (void)state;
    for (int delay = 0; delay <= 60; delay += 30) {
        pid_t a[2], b[2];
        memset(board, 0, sizeof(*board));
        struct plan first = {.steps = 400, .hold_ms = 10, .word = "first"},
                    second = {.slot = 4, .steps = 400, .hold_ms = 10, .word = "second"};
        start_group(a, 2, &first);
        sleep_ms(delay);
        start_group(b, 2, &second);
        for (int r = 0; r < 2; r++)
            assert_true(finish(a[r]) == 1 && finish(b[r]) == 1);
        for (int slot = 0; slot < 8; slot += 4)
            for (int r = 0; r < 2; r++)
                if (board->rc[slot + r] != DDSTORE_ECONFLICT)
                    fail_msg("delay %d, rank %d of group %d: %d %s", delay, r, slot / 4,
                             board->rc[slot + r], board->err[slot + r].message);
        int refused = strstr(board->err[0].message, "is held by") ? 0 : 4;
        assert_true(says(refused, "is held by"));
        assert_true(says(refused, ":%d", refused ? (int)a[0] : (int)b[0]));
        assert_true(says(4 - refused, "two processes answer for rank"));
    }
}

/* A second answer for rank 1 alone, before and after the group met. */
static void a_second_rank_fails_the_group(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        pid_t a[2];
        memset(board, 0, sizeof(*board));
        struct plan plan = {.steps = 1000, .hold_ms = 5, .delay_ms = late ? 0 : 300},
                    stray = {.slot = 4};
        a[1] = start(member, 1, 2, &plan);
        if (late)
            a[0] = start(member, 0, 2, &plan), sleep_ms(400);
        pid_t b = start(member, 1, 2, &stray);
        if (!late)
            sleep_ms(500), a[0] = start(member, 0, 2, &plan);
        finish(a[0]), finish(a[1]), finish(b);
        const int who[] = {0, 1, 5};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(board->rc[who[i]], DDSTORE_ECONFLICT);
            assert_true(says(who[i], ":%d", (int)a[1]) && says(who[i], ":%d", (int)b));
            assert_true(says(who[i], "rank 1"));
        }
    }
}

static void with_identities_the_second_fails(void **state)
{
    (void)state;
    pid_t a[3], b[3];
    struct plan first = {.identity = "one",
                         .steps = 150,
                         .hold_ms = 30,
                         .word = "first"},
                second = {.slot = 4, .identity = "two", .steps = 3, .word = "second"};
    start_group(a, 3, &first);
    while (atomic_load(&board->ready) < 3)
        sleep_ms(5);
    double t = seconds();
    start_group(b, 3, &second);
    assert_int_equal(finish(b[0]), 1);
    assert_true(seconds() - t < 1);
    for (int r = 1; r < 3; r++)
        assert_int_equal(finish(b[r]), 1);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(board->rc[4 + r], DDSTORE_ECONFLICT);
        assert_true(says(4 + r, ":%d", (int)a[0]) && says(4 + r, "one"));
    }
    for (int r = 0; r < 3; r++)
        assert_int_equal(finish(a[r]), 0);
}

/* Two groups start at once over a dead one's files: at most one is served, and wholly.
 */
static void two_restarts_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        pid_t dead[2], a[2], b[2];
        struct plan old = {.identity = "old", .steps = 1000000, .word = "old"},
                    one = {.identity = "one",
                           .steps = 60,
                           .hold_ms = 10,
                           .word = "one"},
                    two = {.slot = 4,
                           .identity = "two",
                           .steps = 60,
                           .hold_ms = 10,
                           .word = "two"};
        atomic_store(&board->ready, 0);
        start_group(dead, 2, &old);
        while (atomic_load(&board->ready) < 2)
            sleep_ms(2);
        kill(dead[0], SIGKILL), kill(dead[1], SIGKILL);
        finish(dead[0]), finish(dead[1]);
        a[0] = start(member, 0, 2, &one), b[0] = start(member, 0, 2, &two);
        a[1] = start(member, 1, 2, &one), b[1] = start(member, 1, 2, &two);
        int ok_a = finish(a[0]) == 0, ok_b = finish(b[0]) == 0;
        if (!ok_a && !ok_b)
            printf("round %d: both failed\n", round);
        if (!ok_a)
            kill(a[1], SIGKILL); /* as its launcher would */
        if (!ok_b)
            kill(b[1], SIGKILL);
        assert_int_equal(finish(a[1]) == 0, ok_a);
        assert_int_equal(finish(b[1]) == 0, ok_b);
        assert_true(ok_a + ok_b <= 1);
        assert_int_equal(board->rc[0] == DDSTORE_ECONFLICT, !ok_a);
        assert_int_equal(board->rc[4] == DDSTORE_ECONFLICT, !ok_b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_timeout_lists_the_missing),
        TEST(another_launch_is_named),
        TEST(sizes_must_agree),
        TEST(calls_must_agree),
        TEST(a_dead_member_ends_the_group),
        TEST(a_dead_leader_ends_the_group),
        TEST(restarts_never_see_old_data),
        TEST(twins_without_identity_both_fail),
        TEST(a_second_rank_fails_the_group),
        TEST(with_identities_the_second_fails),
        TEST(two_restarts_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

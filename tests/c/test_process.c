/* Processes: who lives, who is gone, and who can't be judged from here. */
#include "support.h"

static void this_one_lives(void **state)
{
    (void)state;
    ddstore__process me;
    ddstore__process_self(&me);
    assert_int_equal(me.pid, getpid());
    assert_true(me.start_time > 0 && me.pid_ns > 0);
    assert_true(me.host[0] != '\0');
    assert_memory_not_equal(me.boot_id, (uint8_t[16]){0}, 16);
    assert_int_equal(ddstore__process_alive(&me), 1);
}

static void tell_who(int fd, void *arg)
{
    (void)arg;
    ddstore__process me;
    ddstore__process_self(&me);
    CHECK(write(fd, &me, sizeof(me)) == sizeof(me));
    (void)hear(fd);
}

static member *start_one(ddstore__process *out)
{
    member *m = member_start(tell_who, NULL);
    CHECK(recv(m->fd, out, sizeof(*out), MSG_WAITALL) == sizeof(*out));
    CHECK(out->pid == (uint32_t)m->pid);
    return m;
}

static void another_lives_until_it_is_killed(void **state)
{
    (void)state;
    ddstore__process other;
    member *m = start_one(&other);
    assert_int_equal(ddstore__process_alive(&other), 1);
    member_stop(m);
    assert_int_equal(ddstore__process_alive(&other), 1); /* it only stands still */
    member_kill(m);
    assert_int_equal(ddstore__process_alive(&other), 0);
}

static void a_zombie_is_gone(void **state)
{
    (void)state;
    ddstore__process other;
    siginfo_t info;
    member *m = start_one(&other);
    kill(m->pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)m->pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(ddstore__process_alive(&other), 0);
    (void)member_wait(m);
}

static void a_pid_used_again_is_another(void **state)
{
    (void)state;
    ddstore__process me;
    ddstore__process_self(&me);
    me.start_time++;
    assert_int_equal(ddstore__process_alive(&me), 0);
    me.start_time = 0;
    assert_int_equal(ddstore__process_alive(&me), 0);
}

static void pids_that_cannot_be_are_gone(void **state)
{
    (void)state;
    static const uint32_t pids[] = {0, 0x7fffffff, 0x80000000, 0xffffffff};
    for (size_t i = 0; i < DDSTORE__COUNT(pids); i++) {
        ddstore__process p;
        ddstore__process_self(&p);
        p.pid = pids[i];
        p.start_time = 0;
        assert_int_equal(ddstore__process_alive(&p), 0);
    }
}

static void others_hosts_cannot_be_judged(void **state)
{
    (void)state;
    ddstore__process p;
    ddstore__process_self(&p);
    p.boot_id[3] ^= 1;
    assert_int_equal(ddstore__process_alive(&p), -1);
    p.boot_id[3] ^= 1;
    p.pid_ns ^= 1;
    assert_int_equal(ddstore__process_alive(&p), -1);
}

static void names_with_brackets_are_read(void **state)
{
    (void)state;
    ddstore__process me, again;
    ddstore__process_self(&me);
    prctl(PR_SET_NAME, "a) Z 1 (b");
    ddstore__process_self(&again);
    prctl(PR_SET_NAME, "test_process");
    assert_true(me.start_time == again.start_time);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(this_one_lives),
        TEST(another_lives_until_it_is_killed),
        TEST(a_zombie_is_gone),
        TEST(a_pid_used_again_is_another),
        TEST(pids_that_cannot_be_are_gone),
        TEST(others_hosts_cannot_be_judged),
        TEST(names_with_brackets_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Time, and what every wait asks: its deadline, its close flag, the host's interrupt.
 */
#include "support.h"

#include <math.h>

static int answer, calls;

static int asked(void *arg)
{
    calls++;
    return *(int *)arg;
}

static void time_goes_on(void **state)
{
    (void)state;
    int64_t a = ddstore__now_ns(), b = ddstore__now_ns();
    assert_true(a > 0 && b >= a);
    ddstore__sleep_ns(20 * DDSTORE__MS);
    assert_true(ddstore__now_ns() - a >= 15 * DDSTORE__MS);
}

static void deadlines_saturate(void **state)
{
    (void)state;
    int64_t now = ddstore__now_ns();
    assert_in_range(ddstore__after_s(1.5) - now, 1500000000u, 1600000000u * 10);
    assert_true(ddstore__after_s(0) >= now);
    assert_true(ddstore__after_s(-1) < now);
    assert_int_equal(ddstore__after_s(1e12), DDSTORE__FOREVER);
    assert_int_equal(ddstore__after_s(1e300), DDSTORE__FOREVER);
    assert_int_equal(ddstore__after_s((double)INFINITY), DDSTORE__FOREVER);
    assert_int_equal(ddstore__after_s((double)NAN), DDSTORE__FOREVER);
    assert_true(ddstore__after_s(8.9e9) > now);
}

static void a_wait_ends_at_its_deadline(void **state)
{
    (void)state;
    ddstore__wait wait = {DDSTORE__FOREVER, NULL};
    fault.code = 77;
    assert_int_equal(ddstore__wait_check(&wait, &fault), 0);
    wait.deadline_ns = ddstore__now_ns();
    assert_int_equal(ddstore__wait_check(&wait, &fault), DDSTORE_ETIMEDOUT);
    assert_int_equal(fault.code, 77); /* the caller knows what it waited for */
}

static void a_wait_ends_when_closed(void **state)
{
    (void)state;
    atomic_int closed = 0;
    ddstore__wait wait = {DDSTORE__FOREVER, &closed};
    assert_int_equal(ddstore__wait_check(&wait, &fault), 0);
    atomic_store(&closed, 1);
    CHECK_FAILS(ddstore__wait_check(&wait, &fault), DDSTORE_ECLOSED, "freed");
}

static void a_wait_ends_when_the_host_says(void **state)
{
    (void)state;
    ddstore__wait wait = {DDSTORE__FOREVER, NULL};
    calls = answer = 0;
    ddstore_set_interrupt(asked, &answer);
    assert_int_equal(ddstore__wait_check(&wait, &fault), 0);
    assert_int_equal(calls, 1);
    answer = 1;
    CHECK_FAILS(ddstore__wait_check(&wait, &fault), DDSTORE_EINTR, "interrupted");
    ddstore_set_interrupt(NULL, NULL);
    assert_int_equal(ddstore__wait_check(&wait, &fault), 0);
    assert_int_equal(calls, 2);
}

static void an_interrupt_may_change_itself(void **state)
{
    (void)state;
    ddstore__wait wait = {0, NULL};
    answer = 0;
    ddstore_set_interrupt(asked, &answer);
    assert_int_equal(ddstore__wait_check(&wait, NULL), DDSTORE_ETIMEDOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(time_goes_on),
        TEST(deadlines_saturate),
        TEST(a_wait_ends_at_its_deadline),
        TEST(a_wait_ends_when_closed),
        TEST(a_wait_ends_when_the_host_says),
        TEST(an_interrupt_may_change_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Registered destinations: once each, and unknown ones refused. */
#include "support.h"

#include "registry.h"

static ddstore__registry r;
static uint8_t memory[4096];

static void each_is_kept_once(void **state)
{
    (void)state;
    ddstore__registry_open(&r);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ddstore__registry_add(&r, NULL, memory, 100, &fault), 0);
    assert_int_equal(r.n, 1);
    assert_int_equal(ddstore__registry_remove(&r, NULL, memory, 100, &fault), 0);
    CHECK_FAILS(ddstore__registry_remove(&r, NULL, memory, 100, &fault), DDSTORE_EINVAL,
                "not registered");
    ddstore__registry_close(&r, NULL);
}

static void ranges_are_told_apart(void **state)
{
    (void)state;
    ddstore__registry_open(&r);
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(ddstore__registry_add(&r, NULL, memory + i, 100, &fault), 0);
    assert_int_equal(r.n, 200);
    CHECK_FAILS(ddstore__registry_remove(&r, NULL, memory, 99, &fault), DDSTORE_EINVAL,
                "");
    CHECK_FAILS(ddstore__registry_remove(&r, NULL, memory + 200, 100, &fault),
                DDSTORE_EINVAL, "");
    for (uint64_t i = 0; i < 200; i += 2)
        assert_int_equal(ddstore__registry_remove(&r, NULL, memory + i, 100, &fault),
                         0);
    for (uint64_t i = 1; i < 200; i += 2)
        assert_int_equal(ddstore__registry_remove(&r, NULL, memory + i, 100, &fault),
                         0);
    assert_int_equal(r.n, 0);
    ddstore__registry_close(&r, NULL);
    ddstore__registry_close(&r, NULL); /* twice does nothing */
}

static void *add_many(void *arg)
{
    uint8_t *from = arg;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(ddstore__registry_add(&r, NULL, from + i, 8, NULL), 0);
        if (i % 3)
            assert_int_equal(ddstore__registry_remove(&r, NULL, from + i, 8, NULL), 0);
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    (void)state;
    pthread_t thread[4];
    ddstore__registry_open(&r);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, add_many, memory + 1000 * i);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(r.n, 4 * 34);
    ddstore__registry_close(&r, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_is_kept_once),
        TEST(ranges_are_told_apart),
        TEST(threads_share_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

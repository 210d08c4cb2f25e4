/* Runs: members, references, and the records that extra members may ask for. */
#include "support.h"

#include "run.h"

static const uint8_t id[16] = "a run", secret[16] = "a secret";

static void a_run_lasts_as_long_as_its_members(void **state)
{
    (void)state;
    assert_null(ddstore__run_find(id));
    ddstore__run *run = ddstore__run_open(id, secret);
    assert_ptr_equal(ddstore__run_open(id, secret), run); /* a second member here */
    ddstore__run *found = ddstore__run_find(id);
    assert_ptr_equal(found, run);
    assert_memory_equal(found->secret, secret, 16);
    ddstore__run_close(run);
    assert_int_equal(atomic_load(&found->closing), 0);
    ddstore__run_close(run);
    assert_int_equal(atomic_load(&found->closing), 1);
    assert_null(ddstore__run_find(id));
    ddstore__run *next = ddstore__run_open(id, secret);
    assert_ptr_not_equal(next, found);
    ddstore__run_close(next);
    ddstore__run_unref(found);
    ddstore__run_close(NULL);
}

static void records_are_copies(void **state)
{
    (void)state;
    ddstore__run *run = ddstore__run_open(id, secret);
    char data[] = "record";
    size_t bytes = 0;
    assert_int_equal(ddstore__run_publish(run, "v", data, 6), 0);
    memset(data, 'x', 6);
    uint8_t *copy = ddstore__run_record(run, "v", &bytes);
    assert_int_equal(bytes, 6);
    assert_memory_equal(copy, "record", 6);
    free(copy);
    assert_null(ddstore__run_record(run, "w", &bytes));
    assert_null(ddstore__run_record(run, "", &bytes));
    ddstore__run_close(run);
}

static void the_newest_of_a_name_is_given(void **state)
{
    (void)state;
    ddstore__run *run = ddstore__run_open(id, secret);
    size_t bytes = 9;
    assert_int_equal(ddstore__run_publish(run, "v", "one", 3), 0);
    assert_int_equal(ddstore__run_publish(run, "w", "two", 3), 0);
    assert_int_equal(ddstore__run_publish(run, "v", "", 0), 0);
    uint8_t *copy = ddstore__run_record(run, "v", &bytes);
    assert_non_null(copy);
    assert_int_equal(bytes, 0);
    free(copy);
    copy = ddstore__run_record(run, "w", &bytes);
    assert_memory_equal(copy, "two", 3);
    free(copy);
    ddstore__run_close(run);
}

static void *come_and_go(void *arg)
{
    (void)arg;
    for (int i = 0; i < 500; i++) {
        ddstore__run *run = ddstore__run_open(id, secret);
        size_t bytes;
        (void)ddstore__run_publish(run, "v", "x", 1);
        ddstore__run *found = ddstore__run_find(id);
        if (found) {
            free(ddstore__run_record(found, "v", &bytes));
            ddstore__run_unref(found);
        }
        ddstore__run_close(run);
    }
    return NULL;
}

static void threads_come_and_go(void **state)
{
    (void)state;
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, come_and_go, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    assert_null(ddstore__run_find(id));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_lasts_as_long_as_its_members),
        TEST(records_are_copies),
        TEST(the_newest_of_a_name_is_given),
        TEST(threads_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Readers: who reads a store is waited for, and each thread's memory is its own. */
#include "support.h"

#include "reader.h"

static int store_a, store_b;
static atomic_int go_on, entered;

static void *read_a(void *arg)
{
    (void)arg;
    ddstore__reader *r = ddstore__reader_enter(&store_a);
    atomic_fetch_add(&entered, 1);
    while (!atomic_load(&go_on))
        sleep_ms(1);
    ddstore__reader_leave(r);
    return NULL;
}

static void a_store_in_use_is_waited_for(void **state)
{
    (void)state;
    pthread_t thread[3];
    atomic_store(&go_on, 0);
    atomic_store(&entered, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, read_a, NULL);
    while (atomic_load(&entered) < 3)
        sleep_ms(1);
    assert_false(ddstore__reader_wait(&store_a, ddstore__after_s(0.05)));
    assert_true(ddstore__reader_wait(&store_b, ddstore__after_s(0)));
    atomic_store(&go_on, 1);
    assert_true(ddstore__reader_wait(&store_a, ddstore__after_s(60)));
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

static void *find_reader(void *arg)
{
    ddstore__reader *r = ddstore__reader_enter(&store_a);
    *(ddstore__reader **)arg = r;
    (void)ddstore__reader_scratch(r, 0, 100000);
    ddstore__reader_leave(r);
    return NULL;
}

static void threads_have_readers_of_their_own(void **state)
{
    (void)state;
    pthread_t thread;
    ddstore__reader *mine = ddstore__reader_enter(&store_a), *theirs = NULL,
                    *next = NULL;
    ddstore__reader_leave(mine);
    assert_ptr_equal(ddstore__reader_enter(&store_b), mine);
    ddstore__reader_leave(mine);
    pthread_create(&thread, NULL, find_reader, &theirs);
    pthread_join(thread, NULL);
    assert_ptr_not_equal(mine, theirs);
    assert_int_equal((uintptr_t)theirs % 64, 0); /* in cache lines of its own */
    pthread_create(&thread, NULL, find_reader, &next);
    pthread_join(thread, NULL);
    assert_ptr_equal(theirs, next); /* a thread that ended leaves its place */
}

static void scratch_memory_is_kept_and_given_back(void **state)
{
    (void)state;
    ddstore__reader *r = ddstore__reader_enter(&store_a);
    void *small = ddstore__reader_scratch(r, 0, 100);
    assert_non_null(small);
    assert_ptr_equal(ddstore__reader_scratch(r, 0, 200), small);
    assert_ptr_not_equal(ddstore__reader_scratch(r, 1, 100), small);
    uint8_t *large = ddstore__reader_scratch(r, 0, 64 << 20);
    assert_non_null(large);
    large[(64 << 20) - 1] = 1;
    (void)ddstore__reader_scratch(r, 0, 100);
    assert_true(r->scratch[0].bytes < 1 << 20);
    assert_non_null(ddstore__reader_scratch(r, 0, 0));
    ddstore__reader_leave(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_store_in_use_is_waited_for),
        TEST(threads_have_readers_of_their_own),
        TEST(scratch_memory_is_kept_and_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The log: what passes the threshold, and the queue between the progress thread, which
 * never calls the host, and the threads that do. */
#include "support.h"

static struct {
    pthread_mutex_t lock;
    int n, level;
    char last[4096], first[4096];
    pthread_t thread;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(void *arg, int level, const char *message)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    if (!seen.n++)
        snprintf(seen.first, sizeof(seen.first), "%s", message);
    snprintf(seen.last, sizeof(seen.last), "%s", message);
    seen.level = level;
    seen.thread = pthread_self();
    pthread_mutex_unlock(&seen.lock);
}

static void listen_from(int level)
{
    ddstore_set_logger(NULL, NULL, 0);
    (void)ddstore_log_drain(0);
    seen.n = 0;
    *seen.first = *seen.last = '\0';
    ddstore_set_logger(keep, NULL, level);
}

static void lines_below_the_level_are_dropped(void **state)
{
    (void)state;
    listen_from(DDSTORE_LOG_WARN);
    ddstore__log(DDSTORE_LOG_INFO, "no");
    ddstore__log_later(DDSTORE_LOG_INFO, "no");
    assert_int_equal(ddstore_log_drain(0), 0);
    assert_int_equal(seen.n, 0);
    ddstore__log(DDSTORE_LOG_WARN, "a %d", 5);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.level, DDSTORE_LOG_WARN);
    assert_string_equal(seen.last, "a 5");
}

static void nobody_listens(void **state)
{
    (void)state;
    listen_from(DDSTORE_LOG_DEBUG);
    ddstore_set_logger(NULL, NULL, DDSTORE_LOG_DEBUG);
    ddstore__log(DDSTORE_LOG_ERROR, "no");
    ddstore__log_later(DDSTORE_LOG_ERROR, "no");
    assert_int_equal(ddstore_log_drain(0), 0);
    assert_int_equal(seen.n, 0);
}

static void later_lines_wait_for_another_thread(void **state)
{
    (void)state;
    listen_from(DDSTORE_LOG_DEBUG);
    ddstore__log_later(DDSTORE_LOG_INFO, "first");
    ddstore__log_later(DDSTORE_LOG_WARN, "second");
    assert_int_equal(seen.n, 0);
    assert_int_equal(ddstore_log_drain(0), 2);
    assert_string_equal(seen.first, "first");
    assert_string_equal(seen.last, "second");
    ddstore__log_later(DDSTORE_LOG_INFO, "third");
    ddstore__log(DDSTORE_LOG_INFO, "fourth"); /* passes on what waits, first */
    assert_int_equal(seen.n, 4);
    assert_string_equal(seen.last, "fourth");
}

static void the_queue_is_bounded(void **state)
{
    (void)state;
    listen_from(DDSTORE_LOG_DEBUG);
    for (int i = 0; i < 1000; i++)
        ddstore__log_later(DDSTORE_LOG_INFO, "line %d", i);
    int n = ddstore_log_drain(0);
    assert_in_range(n, 16, 999);
    assert_string_equal(seen.first, "line 0");
    assert_int_equal(seen.n, n + 1);
    char lost[64];
    snprintf(lost, sizeof(lost), "%d log lines were dropped", 1000 - n);
    assert_non_null(strstr(seen.last, lost));
    ddstore__log_later(DDSTORE_LOG_INFO, "after");
    assert_int_equal(ddstore_log_drain(0), 1);
    assert_string_equal(seen.last, "after");
}

static void long_lines_are_cut(void **state)
{
    (void)state;
    static char text[9000];
    memset(text, 'b', sizeof(text) - 1);
    listen_from(DDSTORE_LOG_DEBUG);
    ddstore__log(DDSTORE_LOG_INFO, "%s", text);
    assert_in_range(strlen(seen.last), 500, 4095);
    ddstore__log_later(DDSTORE_LOG_INFO, "%s", text);
    assert_int_equal(ddstore_log_drain(0), 1);
    assert_in_range(strlen(seen.last), 500, 4095);
}

static void *say_later(void *arg)
{
    sleep_ms(150);
    ddstore__log_later(DDSTORE_LOG_INFO, "from %s", (const char *)arg);
    return NULL;
}

static void drain_waits_for_a_line(void **state)
{
    (void)state;
    pthread_t thread;
    listen_from(DDSTORE_LOG_DEBUG);
    int64_t begin = ddstore__now_ns();
    assert_int_equal(ddstore_log_drain(50), 0);
    assert_true(seconds_since(begin) >= 0.04);
    char name[] = "there";
    pthread_create(&thread, NULL, say_later, name);
    begin = ddstore__now_ns();
    assert_int_equal(ddstore_log_drain(30000), 1);
    assert_true(seconds_since(begin) < 20);
    pthread_join(thread, NULL);
    assert_string_equal(seen.last, "from there");
    assert_true(pthread_equal(seen.thread, pthread_self()));
}

#define SAID 20000
static atomic_int stop_draining;

static void *drain_on(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop_draining))
        (void)ddstore_log_drain(5);
    return NULL;
}

static void many_threads_drain(void **state)
{
    (void)state;
    pthread_t drainer[3];
    listen_from(DDSTORE_LOG_DEBUG);
    atomic_store(&stop_draining, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&drainer[i], NULL, drain_on, NULL);
    for (int i = 0; i < SAID; i++)
        ddstore__log_later(DDSTORE_LOG_INFO, "line %d", i);
    atomic_store(&stop_draining, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(drainer[i], NULL);
    (void)ddstore_log_drain(0);
    assert_in_range(seen.n, 16, 2 * SAID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lines_below_the_level_are_dropped),
        TEST(nobody_listens),
        TEST(later_lines_wait_for_another_thread),
        TEST(the_queue_is_bounded),
        TEST(long_lines_are_cut),
        TEST(drain_waits_for_a_line),
        TEST(many_threads_drain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

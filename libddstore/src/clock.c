/* Time and waiting: the monotonic clock, and what every waiting loop asks. */
#include "base.h"

#include <pthread.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* interrupt */
static struct {
    int (*fn)(void *arg);
    void *arg;
} interrupt;

int64_t ddstore__now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * DDSTORE__S + now.tv_nsec;
}

int64_t ddstore__after_s(double seconds)
{
    int64_t now = ddstore__now_ns();
    if (!(seconds < 9e9))
        return DDSTORE__FOREVER;
    return now + (int64_t)(seconds * 1e9);
}

void ddstore__sleep_ns(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / DDSTORE__S, .tv_nsec = ns % DDSTORE__S};
    (void)!nanosleep(&t, NULL);
}

void ddstore_set_interrupt(int (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    interrupt.fn = fn;
    interrupt.arg = arg;
    pthread_mutex_unlock(&lock);
}

int ddstore__wait_check(const ddstore__wait *wait, ddstore_error *err)
{
    if (wait->closed && atomic_load(wait->closed))
        return ddstore__fail(err, DDSTORE_ECLOSED,
                             "the store was freed during the call");
    pthread_mutex_lock(&lock);
    int (*fn)(void *) = interrupt.fn;
    void *arg = interrupt.arg;
    pthread_mutex_unlock(&lock);
    if (fn && fn(arg))
        return ddstore__fail(err, DDSTORE_EINTR, "the wait was interrupted");
    return ddstore__now_ns() >= wait->deadline_ns ? DDSTORE_ETIMEDOUT : DDSTORE_OK;
}

void ddstore__clock_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* Time and waiting: the monotonic clock, and what every waiting loop asks. */
#include "base.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#define SPIN_NS     (10 * 1000LL)
#define YIELD_NS    (2 * DDSTORE__MS)
#define SLEEP_LEAST (20 * 1000LL)
#define CHECK_NS    (20 * DDSTORE__MS) /* the host's interrupt check may be dear */

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
    if (ddstore__now_ns() >= wait->deadline_ns)
        return DDSTORE_ETIMEDOUT;
    pthread_mutex_lock(&lock);
    int (*fn)(void *) = interrupt.fn;
    void *arg = interrupt.arg;
    pthread_mutex_unlock(&lock);
    unsigned generation = ddstore__fork_generation;
    if (fn && fn(arg))
        return ddstore__fail(err, DDSTORE_EINTR, "the wait was interrupted");
    if (generation != ddstore__fork_generation)
        return ddstore__fail(err, DDSTORE_EFORKED,
                             "this process was forked while the call waited: it goes "
                             "on in the parent");
    return DDSTORE_OK;
}

void ddstore__pause_begin(ddstore__pauses *p, int64_t timeout_ns,
                          const atomic_int *closed)
{
    int64_t now = ddstore__now_ns();
    *p = (ddstore__pauses){
        .wait = {timeout_ns < DDSTORE__FOREVER - now ? now + timeout_ns
                                                     : DDSTORE__FOREVER,
                 closed},
        .begun_ns = now,
        .next_check_ns = now + CHECK_NS,
        .sleep_ns = SLEEP_LEAST,
    };
}

int ddstore__pause(ddstore__pauses *p, ddstore_error *err)
{
    int64_t now = ddstore__now_ns();
    if (now >= p->next_check_ns || now >= p->wait.deadline_ns) {
        int rc = ddstore__wait_check(&p->wait, err);
        if (rc)
            return rc;
        p->next_check_ns = now + CHECK_NS;
    }
    if (now - p->begun_ns < SPIN_NS)
        return DDSTORE_OK;
    if (now - p->begun_ns < YIELD_NS) {
        (void)sched_yield();
        return DDSTORE_OK;
    }
    ddstore__sleep_ns(p->sleep_ns);
    p->sleep_ns = p->sleep_ns < DDSTORE__MS / 2 ? p->sleep_ns * 3 / 2 : DDSTORE__MS;
    return DDSTORE_OK;
}

void ddstore__clock_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* The log: lines go to the host's function; the progress thread's wait in a bounded
 * queue. */
#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define LINE  512
#define SLOTS 64u

/* A slot is free (0), being written (1) or full (2). */
static struct slot {
    atomic_int state;
    int level;
    char text[LINE];
} queue[SLOTS];

static atomic_uint next_in, dropped;
static sem_t waiting;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t out_lock = PTHREAD_MUTEX_INITIALIZER; /* next_out */
static unsigned next_out;

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER; /* host */
static struct {
    ddstore_log_fn *fn;
    void *arg;
} host;
static atomic_int threshold = 100;

static void start(void)
{
    sem_init(&waiting, 0, 0);
}

void ddstore_set_logger(ddstore_log_fn *fn, void *arg, int level)
{
    pthread_once(&once, start);
    pthread_mutex_lock(&host_lock);
    host.fn = fn;
    host.arg = arg;
    pthread_mutex_unlock(&host_lock);
    atomic_store(&threshold, fn ? level : 100);
}

static void pass_on(int level, const char *text)
{
    pthread_mutex_lock(&host_lock);
    ddstore_log_fn *fn = host.fn;
    void *arg = host.arg;
    pthread_mutex_unlock(&host_lock);
    if (fn)
        fn(arg, level, text);
}

/* Takes the oldest waiting line; false where there is none. */
static bool take(int *level, char text[LINE])
{
    pthread_mutex_lock(&out_lock);
    struct slot *slot = &queue[next_out % SLOTS];
    bool full = atomic_load_explicit(&slot->state, memory_order_acquire) == 2;
    if (full) {
        *level = slot->level;
        memcpy(text, slot->text, LINE);
        next_out++;
        atomic_store_explicit(&slot->state, 0, memory_order_release);
    }
    pthread_mutex_unlock(&out_lock);
    return full;
}

static int drain(void)
{
    char text[LINE];
    int level, n = 0;
    while (take(&level, text)) {
        pass_on(level, text);
        n++;
    }
    unsigned lost = atomic_exchange(&dropped, 0);
    if (lost) {
        snprintf(text, sizeof(text), "%u log lines were dropped: too many at once",
                 lost);
        pass_on(DDSTORE_LOG_WARN, text);
    }
    return n;
}

void ddstore__log(int level, const char *format, ...)
{
    if (level < atomic_load_explicit(&threshold, memory_order_relaxed))
        return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    drain();
    pass_on(level, text);
}

void ddstore__log_later(int level, const char *format, ...)
{
    if (level < atomic_load_explicit(&threshold, memory_order_relaxed))
        return;
    pthread_once(&once, start);
    struct slot *slot = &queue[atomic_load(&next_in) % SLOTS];
    int free_slot = 0;
    if (!atomic_compare_exchange_strong(&slot->state, &free_slot, 1)) {
        atomic_fetch_add(&dropped, 1);
        return;
    }
    atomic_fetch_add(&next_in, 1);
    slot->level = level;
    va_list args;
    va_start(args, format);
    vsnprintf(slot->text, LINE, format, args);
    va_end(args);
    atomic_store_explicit(&slot->state, 2, memory_order_release);
    sem_post(&waiting);
}

int ddstore_log_drain(int timeout_ms)
{
    pthread_once(&once, start);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)timeout_ms * DDSTORE__MS;
    until.tv_sec += ns / DDSTORE__S;
    until.tv_nsec = ns % DDSTORE__S;
    if (timeout_ms > 0)
        (void)!sem_timedwait(&waiting, &until);
    while (sem_trywait(&waiting) == 0)
        ;
    return drain();
}

void ddstore__log_child(void)
{
    pthread_mutex_init(&out_lock, NULL);
    pthread_mutex_init(&host_lock, NULL);
    for (size_t i = 0; i < SLOTS; i++) /* the parent passes its lines on */
        atomic_store(&queue[i].state, 0);
    atomic_store(&next_in, 0);
    next_out = 0;
    start();
}

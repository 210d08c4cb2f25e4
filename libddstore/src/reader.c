/* Readers: the list of threads that read, and their scratch memory. */
#include "reader.h"

#include <pthread.h>
#include <stdlib.h>

#define KEPT_BYTES                                                                     \
    (1u << 20) /* larger scratch memory goes with its call's successor                 \
                */

static _Atomic(ddstore__reader *) readers;
static _Thread_local ddstore__reader *mine;
static pthread_key_t at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_ends(void *reader)
{
    ddstore__reader *r = reader;
    for (int i = 0; i < DDSTORE__SCRATCHES; i++) {
        free(r->scratch[i].data);
        r->scratch[i] = (ddstore__scratch){NULL, 0};
    }
    mine = NULL;
    atomic_store(&r->taken, 0);
}

static void make_key(void)
{
    (void)pthread_key_create(&at_exit, thread_ends);
}

static ddstore__reader *take(void)
{
    pthread_once(&once, make_key);
    for (ddstore__reader *r = atomic_load(&readers); r; r = r->next) {
        int no = 0;
        if (atomic_compare_exchange_strong(&r->taken, &no, 1))
            return r;
    }
    ddstore__reader *r = aligned_alloc(64, (sizeof(*r) + 63) & ~(size_t)63);
    if (!r)
        return NULL;
    memset(r, 0, sizeof(*r));
    atomic_init(&r->busy, NULL);
    atomic_init(&r->taken, 1);
    r->next = atomic_load(&readers);
    while (!atomic_compare_exchange_weak(&readers, &r->next, r))
        ;
    return r;
}

ddstore__reader *ddstore__reader_enter(const void *store)
{
    ddstore__reader *r = mine;
    if (!r) {
        r = take();
        if (!r)
            return NULL;
        mine = r;
        (void)pthread_setspecific(at_exit, r);
    }
    atomic_store(&r->busy, store); /* ordered before the look at the closed flag */
    return r;
}

static bool busy(const void *store)
{
    for (ddstore__reader *r = atomic_load(&readers); r; r = r->next)
        if (atomic_load(&r->busy) == store)
            return true;
    return false;
}

bool ddstore__reader_wait(const void *store, int64_t deadline_ns)
{
    for (int64_t pause = 20000; busy(store); pause += pause < 1000000 ? pause : 0) {
        if (ddstore__now_ns() >= deadline_ns)
            return false;
        ddstore__sleep_ns(pause);
    }
    return true;
}

void *ddstore__reader_scratch(ddstore__reader *reader, int which, size_t bytes)
{
    ddstore__scratch *s = &reader->scratch[which];
    if (s->bytes >= bytes && (s->bytes <= KEPT_BYTES || s->bytes / 4 <= bytes))
        return s->data;
    free(s->data);
    s->bytes = bytes < 4096 ? 4096 : bytes;
    s->data = malloc(s->bytes);
    if (!s->data)
        s->bytes = 0;
    return s->data;
}

void *ddstore__reader_give(ddstore__reader *reader, int which)
{
    void *data = reader->scratch[which].data;
    reader->scratch[which] = (ddstore__scratch){NULL, 0};
    return data;
}

void ddstore__reader_child(void)
{
    atomic_store(&readers, NULL);
    mine = NULL;
}

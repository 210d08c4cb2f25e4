/*
 * Readers: one a thread. While a thread reads it is marked busy with its store in a
 * cache line of its own, so that freeing a store can wait for running reads although
 * reads take no lock and share no line. Holds the thread's scratch memory too.
 */
#ifndef DDSTORE_READER_H
#define DDSTORE_READER_H

#include "base.h"

typedef struct ddstore__scratch {
    void *data;
    size_t bytes;
} ddstore__scratch;

enum {
    DDSTORE__SCRATCH_ENTRIES,
    DDSTORE__SCRATCH_PIECES,
    DDSTORE__SCRATCH_REQUESTS,
    DDSTORE__SCRATCH_COPIES,
    DDSTORE__SCRATCH_STREAMS,
    DDSTORE__SCRATCH_SEND,
    DDSTORE__SCRATCH_SORT,
    DDSTORE__SCRATCH_EXCHANGE,
    DDSTORE__SCRATCHES
};

typedef struct ddstore__reader {
    _Alignas(64) _Atomic(const void *) busy; /* the store being read, or NULL */
    struct ddstore__reader *next;            /* of all, only ever added */
    atomic_int taken;                        /* by a living thread */
    ddstore__scratch scratch[DDSTORE__SCRATCHES];
} ddstore__reader;

/* Marks this thread as reading the store; NULL: no memory. The caller looks at the
 * store's closed flag after it, and leaves at once if it is set. */
ddstore__reader *ddstore__reader_enter(const void *store);

static inline void ddstore__reader_leave(ddstore__reader *reader)
{
    atomic_store_explicit(&reader->busy, NULL, memory_order_release);
}

/* Waits until no thread reads the store any more. false: some still do at the deadline.
 */
bool ddstore__reader_wait(const void *store, int64_t deadline_ns);

/* At least `bytes` bytes of this thread's own, kept between calls. NULL: no memory. */
void *ddstore__reader_scratch(ddstore__reader *reader, int which, size_t bytes);

/* Takes that memory from the thread, for good: the caller's to free. NULL: has none. */
void *ddstore__reader_give(ddstore__reader *reader, int which);

void ddstore__reader_child(void); /* after fork: forget the other threads' */

#endif

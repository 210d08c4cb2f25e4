/*
 * Channels, the asking side: TCP connections to a peer's progress thread, opened on
 * first need, kept in a pool of the peer, and used by one thread at a time, which
 * receives the answer itself.
 */
#ifndef DDSTORE_CHANNEL_H
#define DDSTORE_CHANNEL_H

#include "peer.h"

#include <sys/uio.h>

/* Who asks: the run that both ends are members of, and this process. */
typedef struct ddstore__ticket {
    uint8_t run[16], secret[16], uid[16];
} ddstore__ticket;

typedef struct ddstore__channel {
    struct ddstore__channel *next; /* of all of the peer; under its lock */
    ddstore__peer *peer;
    int fd;
    bool idle;          /* under the peer's lock */
    int64_t idle_since; /* ns */
    uint8_t run[16];
} ddstore__channel;

/* How long a caller waits. */
typedef struct ddstore__patience {
    int64_t timeout_ns;       /* without progress */
    const atomic_int *closed; /* nullable: the store's */
    bool probe;               /* asks only: silence doesn't make the peer a lost one */
} ddstore__patience;

/* The same until a deadline that was set before. */
static inline ddstore__patience ddstore__patience_left(const ddstore__patience *whole,
                                                       int64_t deadline_ns)
{
    ddstore__patience left = *whole;
    left.timeout_ns = deadline_ns - ddstore__now_ns();
    if (left.timeout_ns < DDSTORE__MS)
        left.timeout_ns = DDSTORE__MS;
    return left;
}

/* An idle channel, or a new one. DDSTORE_EPEER: the peer is lost, now or before;
 * DDSTORE_ECLOSED: it lives, and freed its store. new_only: no used one. */
int ddstore__channel_acquire(ddstore__peer *peer, const ddstore__ticket *ticket,
                             const ddstore__patience *patience, bool new_only,
                             ddstore__channel **out, ddstore_error *err);
void ddstore__channel_release(ddstore__channel *ch); /* nothing is under way on it */
void ddstore__channel_discard(ddstore__channel *ch); /* something may be */

/* Sends all of it; DDSTORE_ESYS (err untouched): the connection broke. Others: as
 * ddstore__wait_check. */
int ddstore__channel_send(ddstore__channel *ch, const void *data, size_t bytes,
                          const ddstore__patience *patience, ddstore_error *err);

/* Receives up to all of iov: > 0 bytes; 0 nothing yet (after at most 100 ms, or at once
 * with MSG_DONTWAIT in flags); -1 the connection broke. */
ssize_t ddstore__channel_receive(ddstore__channel *ch, struct iovec *iov, size_t n,
                                 int flags);

/* Asks one short question and takes the whole answer: *data (malloc'd) and *bytes, both
 * nullable. DDSTORE_EKEY: no such record. Reconnects once. */
int ddstore__channel_ask(ddstore__peer *peer, const ddstore__ticket *ticket,
                         const ddstore__patience *patience, uint8_t type,
                         const char *text, uint8_t **data, size_t *bytes,
                         ddstore_error *err);

/* The peer let the time pass: it is lost, unless that was a mere probe. Fills err;
 * DDSTORE_EPEER. why: a static string. */
int ddstore__channel_silent(ddstore__peer *peer, const ddstore__patience *patience,
                            const char *why, ddstore_error *err);

/* What a REFUSED answer with that status means to the reader. */
int ddstore__refusal(const ddstore__frame *f, const char *text, ddstore_error *err);

void ddstore__channel_shut_all(ddstore__peer *peer);  /* ends their users' waits */
void ddstore__channel_close_all(ddstore__peer *peer); /* nobody uses them */

/* Opens a connection to the peer and proves the run's secret (connect.c). */
int ddstore__channel_connect(ddstore__peer *peer, const ddstore__ticket *ticket,
                             const ddstore__patience *patience, int *fd,
                             ddstore_error *err);

#endif

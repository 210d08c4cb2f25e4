/*
 * Peers: one per remote process, shared by all segments and stores of this process. A
 * restarted process has another uid and so is another peer. Lost peers fail fast.
 */
#ifndef DDSTORE_PEER_H
#define DDSTORE_PEER_H

#include "transport/ofi.h"
#include "wire.h"

#include <pthread.h>

struct ddstore__channel;

typedef struct ddstore__peer {
    struct ddstore__peer *next;
    uint64_t tag; /* of its pidfd's events */
    int refs;     /* under the table's lock */

    /* Set before it is shared, then only read. */
    ddstore__contact contact;
    bool self;      /* this process */
    bool same_host; /* its death is seen by its pidfd */
    bool mappable;  /* its memory can be mapped: tried on its beacon */
    char why[160];  /* why not, or how it was found */
    int pidfd;

    atomic_int lost; /* reads look here */
    _Atomic(const char *) lost_why;

    pthread_mutex_t
        lock; /* the fields below; inside the table's lock, never around it */
    struct ddstore__channel *channels;
    uint8_t order[DDSTORE__ADDRESSES]; /* addresses, the one that worked first */
    size_t n_addresses;
    ddstore__ofi_peer *ofi;
} ddstore__peer;

/* The peer of that contact, known already or new; `self` is this process's own uid.
 * NULL: no memory. A process of this host that is gone already comes back as lost. */
ddstore__peer *ddstore__peer_get(const ddstore__contact *contact,
                                 const uint8_t self[16]);
void ddstore__peer_put(ddstore__peer *peer);

/* Marks it lost (why: a static string) and ends all waits on its channels. */
void ddstore__peer_lose(ddstore__peer *peer, const char *why);
void ddstore__peer_died(uint64_t tag); /* from the progress thread */

/* Fills err with "process PID on HOST ...: WHY" and returns DDSTORE_EPEER. */
void ddstore__peer_tell_lost(ddstore__peer *peer, ddstore_error *err);
static inline int ddstore__peer_lost_error(ddstore__peer *peer, ddstore_error *err)
{
    ddstore__peer_tell_lost(peer, err);
    return DDSTORE_EPEER;
}

/* Maps `bytes` bytes of another process's memfd and checks the token at its head. 0, or
 * -1 with a reason in why. */
int ddstore__peer_map(const ddstore__peer *peer, uint32_t fd, uint64_t bytes,
                      const uint8_t token[16], void **map, char *why, size_t why_bytes);

void ddstore__peer_child(void); /* after fork: forget */

#endif

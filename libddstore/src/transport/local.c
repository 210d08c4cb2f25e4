/* Path 1: a peer's segment mapped into this process. */
#include "transport.h"

#include <stdio.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define POPULATE_MAX (4ULL << 30) /* larger mappings are filled in by use */

static uint64_t map_bytes(const ddstore__descriptor *d)
{
    return (DDSTORE__HEAD_BYTES + d->bytes + 4095) & ~4095ULL;
}

static void settle(ddstore__attachment *a, uint8_t *map)
{
    if (map) {
        a->closing = &((const ddstore__head *)(const void *)map)->closing;
        atomic_store_explicit(&a->data, map + DDSTORE__HEAD_BYTES,
                              memory_order_release);
    }
    atomic_store_explicit(&a->settled, 1, memory_order_release);
}

void ddstore__attach(ddstore__attachment *a, const ddstore__access *access)
{
    char why[160];
    if (a->peer->self &&
        (a->own = ddstore__segment_find(a->at.id, access->ticket.run))) {
        settle(a, a->own->map);
        return;
    }
    if (!access->map || !a->peer->mappable || a->peer->self) {
        settle(a, NULL);
        return;
    }
    uint64_t bytes = map_bytes(&a->at);
    if (ddstore__peer_map(a->peer, a->at.fd, bytes, a->at.token, &a->map, why,
                          sizeof(why)) != 0) {
        a->map = NULL;
        if (!atomic_load(a->lost) &&
            ddstore__process_alive(&a->peer->contact.process) != 0)
            ddstore__log(DDSTORE_LOG_WARN,
                         "process %u on this host is read over the network: %s",
                         a->peer->contact.process.pid, why);
        settle(a, NULL);
        return;
    }
    /* A child's copy of the mapping would keep the owner's memory after its end. */
    (void)madvise(a->map, bytes, MADV_DONTFORK);
    if (bytes <= POPULATE_MAX)
        (void)madvise(a->map, bytes, MADV_POPULATE_READ);
    settle(a, a->map);
}

void ddstore__detach(ddstore__attachment *a)
{
    if (a->map)
        munmap(a->map, map_bytes(&a->at));
    if (a->own)
        ddstore__segment_unref(a->own);
    a->map = NULL;
    a->own = NULL;
    a->data = NULL;
}

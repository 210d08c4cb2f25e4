/* What a path is asked: pieces of peers' segments into the caller's memory. */
#ifndef DDSTORE_TRANSPORT_H
#define DDSTORE_TRANSPORT_H

#include "ddstore_mpi.h"

#include "../channel.h"
#include "../reader.h"
#include "../segment.h"

/* How a store reads: the same for all its variables. */
typedef struct ddstore__access {
    ddstore__ticket ticket;
    ddstore__patience patience;
    ddstore__ofi *ofi;            /* NULL: path 3 */
    bool map;                     /* DDSTORE_SHM */
    const ddstore_mpi_calls *mpi; /* method 0: path 4, in place of 2 and 3 */
} ddstore__access;

/* A peer's segment as this process sees it. Attached on first need; `data` then tells
 * whether it is mapped. */
typedef struct ddstore__attachment {
    _Atomic(const uint8_t *) data; /* mapped: behind the head; NULL: not (yet) */
    const atomic_int *closing;     /* mapped: the owner freed it */
    const atomic_int *lost;        /* the peer's */
    atomic_int settled;            /* the path is chosen */
    ddstore__peer *peer;
    ddstore__descriptor at;
    ddstore__segment *own; /* of this process: with a reference */
    void *map;
    atomic_bool proven; /* path 2: the token was read back */
    atomic_bool over;   /* its owner said that it freed it: so it stays */
} ddstore__attachment;

/* -- local.c: path 1 -- */

/* Maps the segment where it can be; never fails: what can't be mapped is read over the
 * network. One caller at a time an attachment. */
void ddstore__attach(ddstore__attachment *a, const ddstore__access *access);
void ddstore__detach(ddstore__attachment *a);

/* 0, or the error of a mapped segment whose owner is gone or closed it. */
static inline bool ddstore__mapped_ok(const ddstore__attachment *a)
{
    return !atomic_load_explicit(a->lost, memory_order_relaxed) &&
           !atomic_load_explicit(a->closing, memory_order_relaxed);
}
static inline int ddstore__mapped_error(const ddstore__attachment *a,
                                        ddstore_error *err)
{
    if (atomic_load(a->closing))
        return ddstore__fail(err, DDSTORE_ECLOSED, "its store was freed");
    return ddstore__peer_lost_error(a->peer, err);
}

/* -- what paths 2 and 3 read -- */

typedef struct ddstore__piece {
    uint64_t offset; /* in the segment, from its head on */
    uint64_t bytes;
    uint8_t *dst;
} ddstore__piece;

typedef struct ddstore__request {
    ddstore__attachment *from;
    const ddstore__piece *pieces; /* in ascending order of offset */
    size_t n;
    int rank; /* for messages */
} ddstore__request;

typedef struct ddstore__times {
    int64_t mr_ns, post_ns, wait_ns;
    uint64_t registrations;
} ddstore__times;

/* -- tcp.c: path 3 -- */

typedef struct ddstore__stream ddstore__stream;

/* Sends all requests (n streams of the reader's scratch memory). On failure nothing is
 * under way any more; *failed is the request's number. */
int ddstore__tcp_begin(ddstore__reader *reader, const ddstore__access *access,
                       const ddstore__request *requests, size_t n,
                       ddstore__stream **out, size_t *failed, ddstore_error *err);
/* Takes the answers as they come. */
int ddstore__tcp_finish(ddstore__reader *reader, const ddstore__access *access,
                        ddstore__stream *streams, size_t n, size_t *failed,
                        ddstore_error *err);

/* -- window.c: path 4, over MPI -- */

int ddstore__window_read(const ddstore__access *access, void *window,
                         const ddstore__request *request, ddstore__times *times,
                         ddstore_error *err);

/* -- rdma.c: path 2, over ofi.h -- */

int ddstore__rdma_read(ddstore__reader *reader, const ddstore__access *access,
                       const ddstore__request *requests, size_t n,
                       ddstore__times *times, size_t *failed, ddstore_error *err);

#endif

/* Path 2: the pieces of all peers as one-sided reads in flight together; a peer that is
 * late is asked over its channel whether it lives. */
#include "transport.h"

#include <stdlib.h>

struct late {
    const ddstore__access *access;
    const ddstore__request *requests;
    size_t *failed;
};

static int ask_late_peer(void *arg, uint32_t tag, ddstore_error *err)
{
    const struct late *late = arg;
    ddstore__peer *peer = late->requests[tag].from->peer;
    int rc =
        atomic_load(&peer->lost)
            ? ddstore__peer_lost_error(peer, err)
            : ddstore__channel_ask(peer, &late->access->ticket, &late->access->patience,
                                   DDSTORE__PING, NULL, NULL, NULL, err);
    if (rc)
        *late->failed = tag;
    return rc;
}

static int open_peer(ddstore__attachment *a, const ddstore__access *access,
                     ddstore__ofi_peer **out, ddstore_error *err)
{
    ddstore__peer *peer = a->peer;
    int rc = DDSTORE_OK;
    if (atomic_load(&peer->lost))
        return ddstore__peer_lost_error(peer, err);
    pthread_mutex_lock(&peer->lock);
    if (!peer->ofi)
        rc = ddstore__ofi_peer_open(access->ofi, peer->contact.ofi,
                                    peer->contact.ofi_bytes, &peer->ofi, err);
    *out = peer->ofi;
    pthread_mutex_unlock(&peer->lock);
    return rc;
}

static int run(const ddstore__access *access, const ddstore__request *requests,
               const ddstore__ofi_piece *pieces, size_t n, ddstore__times *times,
               size_t *failed, ddstore_error *err)
{
    struct late late = {access, requests, failed};
    ddstore__ofi_job job = {
        .pieces = pieces,
        .n = n,
        .timeout_ns = access->patience.timeout_ns,
        .closed = access->patience.closed,
        .late = ask_late_peer,
        .arg = &late,
    };
    int rc = ddstore__ofi_read(access->ofi, &job, err);
    times->mr_ns += job.mr_ns;
    times->post_ns += job.post_ns;
    times->wait_ns += job.wait_ns;
    times->registrations += job.registrations;
    return rc;
}

/* This provider connects inside fi_read, which blocks for most of a minute where nobody
 * answers: whether the peer does is asked over its channel first. */
static int ask_first(struct late *late, ddstore_error *err)
{
    if (strcmp(ddstore__ofi_provider(late->access->ofi), "sockets") != 0)
        return DDSTORE_OK;
    return ask_late_peer(late, 0, err);
}

/* The self-test: a segment is only read once its token came back over this path. */
static int prove(const ddstore__access *access, const ddstore__request *q,
                 ddstore__ofi_peer *peer, ddstore_error *err)
{
    ddstore__attachment *a = q->from;
    ddstore__times times = {0};
    ddstore_error unwanted = {0};
    uint8_t *token =
        calloc(1, 16); /* not of the stack: a late read may still write it */
    err = err ? err : &unwanted;
    if (!token)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for the self-test");
    ddstore__ofi_piece piece = {
        .peer = peer,
        .address = a->at.ofi_base,
        .key = a->at.ofi_key,
        .bytes = 16,
        .dst = token,
    };
    size_t none;
    struct late late = {access, q, &none};
    int rc = ask_first(&late, err);
    if (!rc)
        rc = run(access, q, &piece, 1, &times, &none, err);
    bool same = !rc && ddstore__same16(token, a->at.token);
    if (!rc || !err->late)
        free(token);
    /* It was not the caller's memory, and is kept:
     * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    err->late = 0;
    if (!rc && !same)
        rc =
            ddstore__fail(err, DDSTORE_EFABRIC,
                          "provider %s delivers wrong data (self-test of process %u on "
                          "host %s): set DDSTORE_FABRIC=tcp",
                          ddstore__ofi_provider(access->ofi),
                          a->peer->contact.process.pid, a->peer->contact.process.host);
    if (same)
        atomic_store(&a->proven, true);
    return rc;
}

int ddstore__rdma_read(ddstore__reader *reader, const ddstore__access *access,
                       const ddstore__request *requests, size_t n,
                       ddstore__times *times, size_t *failed, ddstore_error *err)
{
    size_t total = 0, used = 0;
    for (size_t i = 0; i < n; i++)
        total += requests[i].n;
    ddstore__ofi_piece *pieces =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_SEND, total * sizeof(*pieces));
    if (!pieces)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a read");
    for (size_t i = 0; i < n; i++) {
        const ddstore__request *q = &requests[i];
        ddstore__ofi_peer *peer = NULL;
        *failed = i;
        int rc = open_peer(q->from, access, &peer, err);
        if (!rc && !atomic_load(&q->from->proven))
            rc = prove(access, q, peer, err);
        if (rc)
            return rc;
        for (size_t j = 0; j < q->n; j++)
            pieces[used++] = (ddstore__ofi_piece){
                .peer = peer,
                .address = q->from->at.ofi_base + q->pieces[j].offset,
                .key = q->from->at.ofi_key,
                .bytes = q->pieces[j].bytes,
                .dst = q->pieces[j].dst,
                .tag = (uint32_t)i,
            };
    }
    return run(access, requests, pieces, used, times, failed, err);
}

/* Path 4: reads through MPI windows, with a deadline of the library's own. */
#include "transport.h"

#define PIECE_BYTES (256ULL << 20) /* each in the time that a read has */

/* The read was given up: MPI may still write where it was told to. */
static int too_late(ddstore__peer *peer, const ddstore__access *access,
                    ddstore_error *err)
{
    ddstore__peer_lose(peer, "a read of its MPI window did not end in time");
    int rc = ddstore__fail(
        err, DDSTORE_EPEER,
        "process %u on host %s let a read of its MPI window wait for %g s "
        "(DDSTORE_READ_TIMEOUT_S); this MPI may serve reads only while the target is "
        "inside MPI calls: use method=1. bytes may still arrive in the destination, "
        "which must stay allocated",
        peer->contact.process.pid, peer->contact.process.host,
        (double)access->patience.timeout_ns / 1e9);
    if (err)
        err->late = 1;
    return rc;
}

static int read_piece(const ddstore__access *access, void *window,
                      const ddstore__request *q, uint64_t offset, uint64_t bytes,
                      uint8_t *dst, ddstore_error *err)
{
    const ddstore_mpi_calls *mpi = access->mpi;
    ddstore_mpi_read read = {0};
    ddstore__pauses pause;
    unsigned turn = 0;
    int rc, done = 0;
    ddstore__pause_begin(&pause, access->patience.timeout_ns, NULL);
    while ((rc = mpi->read_begin(mpi->comm.arg, window, q->rank, offset, bytes, dst,
                                 &read, err)) == 1) {
        if (read.turn != turn) /* the others' reads go on, and end */
            ddstore__pause_begin(&pause, access->patience.timeout_ns, NULL);
        turn = read.turn;
        rc = ddstore__pause(&pause, err);
        if (rc == DDSTORE_ETIMEDOUT)
            return ddstore__fail(err, DDSTORE_EPEER,
                                 "another thread's read of its MPI window doesn't end");
        if (rc)
            return rc;
    }
    ddstore__pause_begin(&pause, access->patience.timeout_ns, NULL);
    /* Once begun it ends or is late: MPI can't be told to stop, also by an interrupt.
     */
    while (!rc && !(done = mpi->read_test(mpi->comm.arg, &read, err))) {
        int waited = ddstore__pause(&pause, NULL);
        if (waited == DDSTORE_ETIMEDOUT)
            return too_late(q->from->peer, access, err);
        if (waited)
            ddstore__sleep_ns(DDSTORE__MS);
    }
    return done < 0 ? done : rc;
}

int ddstore__window_read(const ddstore__access *access, void *window,
                         const ddstore__request *q, ddstore__times *times,
                         ddstore_error *err)
{
    int64_t begun = ddstore__now_ns();
    if (atomic_load(q->from->lost))
        return ddstore__peer_lost_error(q->from->peer, err);
    for (size_t i = 0; i < q->n; i++) {
        const ddstore__piece *p = &q->pieces[i];
        for (uint64_t at = 0, step; at < p->bytes; at += step) {
            step = p->bytes - at < PIECE_BYTES ? p->bytes - at : PIECE_BYTES;
            int rc =
                read_piece(access, window, q, p->offset + at, step, p->dst + at, err);
            if (rc)
                return rc;
        }
    }
    times->wait_ns += ddstore__now_ns() - begun;
    return DDSTORE_OK;
}

/* The read itself: as many pieces in flight as the queues allow, never without a
 * deadline. */
#include "ofi_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define ENTRIES       64
#define LATE_AFTER_NS (100 * DDSTORE__MS)
#define LATE_AGAIN_NS DDSTORE__S
#define SETTLE_NS     (200 * DDSTORE__MS)
#define SLICE_MS      100
#define RECONNECTS    2
#define POLL_FIRST_NS 100000
#define POLL_NS       20000

typedef struct part { /* of a piece: what is still to be asked for */
    const ddstore__ofi_piece *piece;
    uint64_t offset, bytes;
} part;

/* One call of ddstore__ofi_read. */
typedef struct run {
    ddstore__ofi *ofi;
    ddstore__ofi_reader *reader;
    ddstore__ofi_job *job;
    ddstore_error *err;
    size_t next_piece;
    part now;    /* the piece being asked for */
    part *again; /* parts that have to be asked for once more */
    size_t n_again, room_again;
    bool halved;
    bool blocked;        /* the provider takes no more reads just now */
    int backoff_ms;      /* while it is, and nothing is in flight */
    int64_t progress_ns; /* when something last completed */
    int64_t late_ns;     /* when to ask about late peers next */
    int64_t check_ns;    /* when to look at the close flag and the interrupt next */
    bool broken; /* a connection broke: a new reader goes on when all have ended */
    int reconnects;
    const ddstore__ofi_piece *broken_piece; /* whose read told, and how */
    int broken_code;
    char broken_text[96];
} run;

/* ---- what to ask for next ---- */

/* The part to post next, or NULL: all are posted. */
static part *current(run *r)
{
    while (r->now.bytes == 0) {
        if (r->n_again > 0) {
            r->now = r->again[--r->n_again];
        } else if (r->next_piece < r->job->n) {
            const ddstore__ofi_piece *piece = &r->job->pieces[r->next_piece++];
            r->now = (part){piece, 0, piece->bytes};
        } else {
            return NULL;
        }
    }
    return &r->now;
}

/* A read was longer than the provider takes: once a call the limit is halved. */
static int too_long(run *r, uint64_t bytes)
{
    uint64_t limit = atomic_load(&r->ofi->max_piece);
    if (bytes > limit)
        return 0; /* another read has halved it meanwhile */
    if (r->halved || bytes < 2)
        return ddstore__fail(
            r->err, DDSTORE_EFABRIC,
            "the provider refuses reads of %llu bytes as too long; lower "
            "DDSTORE_MAX_READ_BYTES",
            (unsigned long long)bytes);
    r->halved = true;
    atomic_store(&r->ofi->max_piece, bytes / 2 + bytes % 2);
    return 0;
}

static int ask_again(run *r, const part *p)
{
    if (r->n_again == r->room_again) {
        size_t room = r->room_again ? 2 * r->room_again : 64;
        part *again = realloc(r->again, room * sizeof(*again));
        if (!again)
            return ddstore__fail(r->err, DDSTORE_ENOMEM, "no memory to repeat a read");
        r->again = again;
        r->room_again = room;
    }
    r->again[r->n_again++] = *p;
    return 0;
}

/* ---- failures ---- */

static bool connection_broke(int code)
{
    switch (code) {
    case FI_ECANCELED:
    case FI_ECONNABORTED:
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_EHOSTUNREACH:
    case FI_EIO: /* of sockets, too */
    case FI_ENETDOWN:
    case FI_ENETUNREACH:
    case FI_ENOENT: /* of sockets, whose peer is gone */
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_ETIMEDOUT:
    case EHOSTDOWN:
    case EPIPE:
        return true;
    default:
        return false;
    }
}

/* Turns the provider's (positive) code of one read into an error of ours. */
static int read_failed(run *r, const ddstore__ofi_piece *piece, int code,
                       const char *detail)
{
    bool broke = connection_broke(code), lives = false;
    if (broke && r->job->late) { /* who knows the peer may know that it is gone */
        int rc = r->job->late(r->job->arg, piece->tag, r->err);
        if (rc < 0)
            return rc;
        lives = true;
    }
    return ddstore__fail(r->err, broke && !lives ? DDSTORE_EPEER : DDSTORE_EFABRIC,
                         "%s: a read of %llu bytes %s: %s%s%s%s", r->ofi->provider,
                         (unsigned long long)piece->bytes,
                         !broke  ? "failed"
                         : lives ? "failed, its connection broke again and again"
                                 : "lost its connection to the peer",
                         r->ofi->api->strerror(code), *detail ? " (" : "", detail,
                         *detail ? ")" : "");
}

/* A broken connection is made anew, by another reader; other failures end the call. */
static int failed_or_broken(run *r, const ddstore__ofi_piece *piece, int code,
                            const char *detail)
{
    if (!connection_broke(code))
        return read_failed(r, piece, code, detail);
    r->broken = true;
    r->broken_piece = piece;
    r->broken_code = code;
    snprintf(r->broken_text, sizeof(r->broken_text), "%s", detail);
    return 0;
}

/* Nothing is in flight any more: goes on with a reader that has connections of its own.
 */
static int reconnect(run *r)
{
    if (r->reconnects++ == RECONNECTS)
        return read_failed(r, r->broken_piece, r->broken_code, r->broken_text);
    ddstore__ofi_retire(r->ofi, r->reader);
    r->reader = NULL;
    r->broken = false;
    int rc = ddstore__ofi_acquire(r->ofi, &r->reader, r->err);
    if (rc == 0)
        ddstore__ofi_register_call(r->ofi, r->reader, r->job);
    return rc;
}

static int no_progress(run *r, const ddstore__ofi_piece *piece)
{
    return ddstore__fail(
        r->err, DDSTORE_EPEER,
        "%s: a read of %llu bytes made no progress for %.3g s; the peer is "
        "gone, stopped or unreachable (DDSTORE_READ_TIMEOUT_S)",
        r->ofi->provider, piece ? (unsigned long long)piece->bytes : 0ULL,
        (double)r->job->timeout_ns / (double)DDSTORE__S);
}

/* ---- posting ---- */

/* 0: posted; 1: not just now; negative: failed. */
static int post(run *r, part *p)
{
    ddstore__ofi_reader *reader = r->reader;
    ddstore__ofi_op *op = reader->free_ops;
    uint64_t limit = atomic_load_explicit(&r->ofi->max_piece, memory_order_relaxed);
    fi_addr_t addr;
    uint8_t *target;
    void *desc;
    if (!op)
        return 1;
    int rc = ddstore__ofi_peer_addr(p->piece->peer, &addr, r->err);
    if (rc != 0)
        return rc;
    op->piece = p->piece;
    op->offset = p->offset;
    op->bytes = p->bytes < limit ? p->bytes : limit;
    op->dst = p->piece->dst + p->offset;
    rc = ddstore__ofi_place(r->ofi, reader, op, r->job, &target, &desc, r->err);
    if (rc != 0)
        return rc;
    reader->free_ops = op->next;
    ssize_t code = fi_read(reader->ep, target, op->bytes, desc, addr,
                           p->piece->address + p->offset, p->piece->key, &op->context);
    if (code == 0) {
        op->in_flight = true;
        reader->in_flight++;
        p->offset += op->bytes;
        p->bytes -= op->bytes;
        return 0;
    }
    uint64_t bytes = op->bytes;
    ddstore__ofi_op_done(reader, op, false);
    if (code == -FI_EAGAIN || (code == -FI_ENOMEM && reader->in_flight > 0))
        return 1;
    if (code == -FI_EMSGSIZE)
        return too_long(r, bytes);
    rc = failed_or_broken(r, p->piece, (int)-code, "");
    return rc == 0 ? 1 : rc;
}

static int post_all(run *r)
{
    int rc = 0;
    part *p;
    while (rc == 0 && (p = current(r)))
        rc = post(r, p);
    r->blocked = rc == 1;
    return rc == 1 ? 0 : rc;
}

/* ---- completions ---- */

static int take_error(run *r)
{
    ddstore__ofi_cq_error failed = {0};
    char text[128] = "";
    ssize_t n = fi_cq_readerr(r->reader->cq, &failed.entry, 0);
    if (n == -FI_EAGAIN)
        return 0;
    if (n < 0)
        return ddstore__ofi_fail(r->ofi, r->err, (int)n,
                                 "can't tell why a read failed");
    ddstore__ofi_op *op = ddstore__ofi_op_of(r->reader, failed.entry.op_context);
    if (!op)
        return 0; /* of nothing that was asked for */
    part p = {op->piece, op->offset, op->bytes};
    int rc, code = failed.entry.err;
    if (code == FI_EMSGSIZE) {
        rc = too_long(r, op->bytes);
    } else {
        const char *why = fi_cq_strerror(r->reader->cq, failed.entry.prov_errno,
                                         failed.entry.err_data, text, sizeof(text));
        rc = failed_or_broken(r, op->piece, code, why ? why : text);
    }
    if (rc == 0)
        rc = ask_again(r, &p);
    ddstore__ofi_op_done(r->reader, op, false);
    return rc;
}

/* n: what the queue gave. Returns how many reads ended, or a negative code. */
static int take(run *r, const struct fi_cq_entry *entries, ssize_t n)
{
    if (n == -FI_EAVAIL) {
        int rc = take_error(r);
        return rc < 0 ? rc : 1;
    }
    if (n == 0 || n == -FI_EAGAIN || n == -FI_EINTR || n == -FI_ETIMEDOUT ||
        n == -FI_ECANCELED)
        return 0;
    if (n < 0)
        return ddstore__ofi_fail(r->ofi, r->err, (int)n,
                                 "can't read a completion queue");
    for (ssize_t i = 0; i < n; i++) {
        ddstore__ofi_op *op = ddstore__ofi_op_of(r->reader, entries[i].op_context);
        if (op)
            ddstore__ofi_op_done(r->reader, op, true);
    }
    return (int)n;
}

/* Where queues can't be slept on: looks often at first, then every 20 us or so. */
static ssize_t poll_for(run *r, struct fi_cq_entry *entries, int ms)
{
    int64_t begun = ddstore__now_ns(), waited = 0;
    ssize_t n;
    while ((n = fi_cq_read(r->reader->cq, entries, ENTRIES)) == -FI_EAGAIN &&
           waited < ms * DDSTORE__MS) {
        if (waited < POLL_FIRST_NS)
            sched_yield();
        else
            ddstore__sleep_ns(POLL_NS);
        waited = ddstore__now_ns() - begun;
    }
    return n;
}

/* Waits until something completes, at most `ms`. Returns as take does. */
static int wait_for(run *r, int ms)
{
    struct fi_cq_entry entries[ENTRIES];
    ssize_t n = r->ofi->can_sleep
                    ? fi_cq_sread(r->reader->cq, entries, ENTRIES, NULL, ms)
                    : poll_for(r, entries, ms);
    return take(r, entries, n);
}

/* ---- waiting ---- */

/* Asks the caller about each peer that has reads in flight, or holds up the posting. */
static int ask_late(run *r)
{
    uint32_t seen[64];
    size_t n = 0;
    if (!r->job->late)
        return 0;
    for (size_t i = 0; i <= r->reader->n_ops; i++) {
        const ddstore__ofi_op *op = i ? &r->reader->ops[i - 1] : NULL;
        if (op ? !op->in_flight : !r->now.bytes)
            continue;
        uint32_t tag = op ? op->piece->tag : r->now.piece->tag;
        size_t at = 0;
        while (at < n && seen[at] != tag)
            at++;
        if (at < n)
            continue;
        if (n < DDSTORE__COUNT(seen))
            seen[n++] = tag;
        int rc = r->job->late(r->job->arg, tag, r->err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static const ddstore__ofi_piece *oldest(const run *r)
{
    for (size_t i = 0; i < r->reader->n_ops; i++)
        if (r->reader->ops[i].in_flight)
            return r->reader->ops[i].piece;
    return r->now.piece;
}

/* After a wait without completions, and now and then beside them. */
static int check(run *r, int64_t now)
{
    ddstore__wait wait = {.deadline_ns = DDSTORE__FOREVER, .closed = r->job->closed};
    if (r->job->timeout_ns < DDSTORE__FOREVER - r->progress_ns)
        wait.deadline_ns = r->progress_ns + r->job->timeout_ns;
    r->check_ns = now + SLICE_MS * DDSTORE__MS;
    int rc = ddstore__wait_check(&wait, r->err);
    if (rc == DDSTORE_ETIMEDOUT)
        return no_progress(r, oldest(r));
    if (rc == 0 && now >= r->late_ns) {
        r->late_ns = now + LATE_AGAIN_NS;
        rc = ask_late(r);
    }
    return rc;
}

/* How long to sleep: completions wake the reader, but a connection that came up
 * doesn't. */
static int slice_ms(run *r, int64_t now)
{
    int ms = SLICE_MS;
    int64_t left = r->job->timeout_ns - (now - r->progress_ns);
    if (r->blocked && r->reader->in_flight < r->reader->n_ops / 2) {
        ms = r->backoff_ms;
        r->backoff_ms = r->backoff_ms < 16 ? r->backoff_ms * 2 : 16;
    }
    if (left < ms * DDSTORE__MS)
        ms = left > 0 ? (int)(left / DDSTORE__MS) + 1 : 1;
    return ms;
}

/* Reads until everything has arrived or something failed. */
static int pump(run *r)
{
    for (;;) {
        int64_t begun = ddstore__now_ns();
        int rc = r->broken ? 0 : post_all(r);
        int64_t posted = ddstore__now_ns();
        r->job->post_ns += posted - begun;
        if (rc != 0)
            return rc;
        if (r->reader->in_flight == 0 && r->broken) {
            if ((rc = reconnect(r)) != 0)
                return rc;
            continue;
        }
        if (r->reader->in_flight == 0 && !r->blocked)
            return 0;
        rc = wait_for(r, slice_ms(r, posted));
        int64_t now = ddstore__now_ns();
        r->job->wait_ns += now - posted;
        if (rc < 0)
            return rc;
        if (rc > 0) {
            r->progress_ns = now;
            r->late_ns = now + LATE_AFTER_NS;
            r->backoff_ms = 1;
        }
        if ((rc == 0 || now >= r->check_ns) && (rc = check(r, now)) != 0)
            return rc;
    }
}

/* After a failure: what is in flight mostly ends at once, and then the reader stays. */
static void settle(run *r)
{
    int64_t until = ddstore__now_ns() + SETTLE_NS;
    run quiet = *r;
    ddstore__ofi_job nobody = *r->job;
    nobody.late = NULL;
    quiet.job = &nobody;
    quiet.err = NULL;
    quiet.halved = true;
    while (r->reader->in_flight > 0 && ddstore__now_ns() < until)
        (void)wait_for(&quiet, 20);
    r->again = quiet.again; /* it may have grown */
}

/* err says so if bytes may still arrive in the caller's memory. */
static void tell_late(const run *r)
{
    bool direct = false;
    for (size_t i = 0; i < r->reader->n_ops; i++)
        direct |= r->reader->ops[i].in_flight && !r->reader->ops[i].bounce;
    if (direct && r->err) {
        size_t used = strlen(r->err->message);
        snprintf(r->err->message + used, sizeof(r->err->message) - used,
                 "; bytes may still arrive in the destination, which is kept");
        r->err->late = 1;
    }
}

int ddstore__ofi_read(ddstore__ofi *ofi, ddstore__ofi_job *job, ddstore_error *err)
{
    int64_t now = ddstore__now_ns();
    run r = {
        .ofi = ofi,
        .job = job,
        .err = err,
        .backoff_ms = 1,
        .progress_ns = now,
        .late_ns = now + LATE_AFTER_NS,
        .check_ns = now + SLICE_MS * DDSTORE__MS,
    };
    job->mr_ns = job->post_ns = job->wait_ns = 0;
    job->registrations = 0;
    if (ofi->generation != ddstore__fork_generation)
        return ddstore__fail(err, DDSTORE_EFORKED,
                             "this process was forked; the network "
                             "belongs to its parent");
    int rc = ddstore__ofi_acquire(ofi, &r.reader, err);
    if (rc != 0)
        return rc;
    ddstore__ofi_register_call(ofi, r.reader, job);
    rc = pump(&r);
    if (rc != 0 && r.reader) {
        settle(&r);
        tell_late(&r);
    }
    free(r.again);
    if (r.reader)
        ddstore__ofi_give_back(ofi, r.reader);
    return rc;
}

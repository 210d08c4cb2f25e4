/* Path 3: one request a peer with the list of its runs; the answers are received
 * straight into the caller's rows, from whichever peer has some. */
#include "transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define IOVS     256
#define TRIES    3
#define SLICE_MS 100

/* One peer's answers: a READ for pieces [first, last), then the next READ. */
struct ddstore__stream {
    const ddstore__request *request;
    ddstore__channel *ch;
    size_t first, last;     /* pieces of the READ that is under way */
    size_t at_piece;        /* the next byte goes to this piece ... */
    uint64_t at_byte;       /* ... at this byte */
    uint64_t expected, got; /* bytes of the answer, its head included */
    int64_t deadline_ns;    /* moved on by every byte */
    int64_t look_ns;        /* when to look at the store and the host's signals again */
    int tries;              /* connections that broke since the last answer */
    uint8_t head[DDSTORE__FRAME_BYTES];
};

/* Encodes the READ of pieces from `first` on; adjacent pieces are one run on the wire.
 */
static size_t encode(ddstore__stream *s, uint8_t *out)
{
    const ddstore__request *q = s->request;
    uint8_t *runs = out + DDSTORE__FRAME_BYTES;
    uint64_t sum = 0, end = UINT64_MAX;
    uint32_t n = 0;
    size_t i = s->first;
    for (; i < q->n; i++) {
        const ddstore__piece *p = &q->pieces[i];
        if (p->offset == end) {
            uint8_t *length = runs + (size_t)(n - 1) * DDSTORE__RUN_BYTES + 8;
            ddstore__put64(length, ddstore__get64(length) + p->bytes);
        } else if (n < DDSTORE__RUNS_MAX) {
            ddstore__put64(runs + (size_t)n * DDSTORE__RUN_BYTES, p->offset);
            ddstore__put64(runs + (size_t)n++ * DDSTORE__RUN_BYTES + 8, p->bytes);
        } else {
            break;
        }
        end = p->offset + p->bytes;
        sum += p->bytes;
    }
    ddstore__frame_encode(
        &(ddstore__frame){
            .type = DDSTORE__READ, .count = n, .segment = q->from->at.id, .bytes = sum},
        out);
    s->last = i;
    s->at_piece = s->first;
    s->at_byte = s->got = 0;
    s->expected = DDSTORE__FRAME_BYTES + sum;
    return DDSTORE__FRAME_BYTES + (size_t)n * DDSTORE__RUN_BYTES;
}

static int broke_often(const ddstore__stream *s, ddstore_error *err)
{
    const ddstore__process *p = &s->request->from->peer->contact.process;
    return ddstore__fail(err, DDSTORE_EPEER,
                         "process %u on host %s broke off the connection %d times",
                         p->pid, p->host, s->tries);
}

/* Sends the next READ, on a new connection as often as the old one turns out broken. */
static int ask(ddstore__reader *reader, const ddstore__access *access,
               ddstore__stream *s, ddstore_error *err)
{
    size_t pieces = s->request->n - s->first;
    size_t room = pieces < DDSTORE__RUNS_MAX ? pieces : DDSTORE__RUNS_MAX;
    uint8_t *out =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_SEND,
                                DDSTORE__FRAME_BYTES + room * DDSTORE__RUN_BYTES);
    if (!out)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a request");
    size_t bytes = encode(s, out);
    if (!s->tries) /* a broken connection brings no progress and so no more time */
        s->deadline_ns = ddstore__now_ns() + access->patience.timeout_ns;
    for (;;) {
        int rc = DDSTORE_OK;
        ddstore__patience left =
            ddstore__patience_left(&access->patience, s->deadline_ns);
        if (!s->ch)
            rc = ddstore__channel_acquire(s->request->from->peer, &access->ticket,
                                          &left, s->tries > 0, &s->ch, err);
        if (rc)
            return rc;
        rc = ddstore__channel_send(s->ch, out, bytes, &left, err);
        if (rc == DDSTORE_ETIMEDOUT)
            return ddstore__channel_silent(
                s->request->from->peer, &access->patience,
                "it took no request in time (DDSTORE_READ_TIMEOUT_S)", err);
        if (rc != DDSTORE_ESYS)
            return rc;
        if (s->tries++ >= TRIES)
            return broke_often(s, err);
        ddstore__channel_discard(s->ch);
        s->ch = NULL;
    }
}

/* Where the next bytes of the answer go. */
static size_t gather(const ddstore__stream *s, struct iovec *iov)
{
    size_t n = 0;
    uint64_t skip = s->at_byte;
    if (s->got < DDSTORE__FRAME_BYTES)
        iov[n++] =
            (struct iovec){(void *)(s->head + s->got), DDSTORE__FRAME_BYTES - s->got};
    for (size_t i = s->at_piece; i < s->last && n < IOVS; i++, skip = 0) {
        const ddstore__piece *p = &s->request->pieces[i];
        uint8_t *at = p->dst + skip;
        size_t bytes = (size_t)(p->bytes - skip);
        if (n && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == at)
            iov[n - 1].iov_len += bytes;
        else
            iov[n++] = (struct iovec){at, bytes};
    }
    return n;
}

static void advance(ddstore__stream *s, uint64_t bytes)
{
    if (s->got < DDSTORE__FRAME_BYTES) {
        uint64_t head = DDSTORE__FRAME_BYTES - s->got;
        head = head < bytes ? head : bytes;
        s->got += head;
        bytes -= head;
    }
    s->got += bytes;
    while (bytes) {
        uint64_t left = s->request->pieces[s->at_piece].bytes - s->at_byte;
        if (bytes < left) {
            s->at_byte += bytes;
            return;
        }
        bytes -= left;
        s->at_byte = 0;
        s->at_piece++;
    }
}

/* The text of a refusal: what has run on into the rows, then the rest. */
static int take_refusal(ddstore__stream *s, const ddstore__frame *f, ddstore_error *err)
{
    char text[DDSTORE__TEXT_MAX + 1] = "";
    size_t used = 0, want = f->bytes <= DDSTORE__TEXT_MAX ? (size_t)f->bytes : 0;
    uint64_t rest = s->got - DDSTORE__FRAME_BYTES;
    for (size_t i = s->first; rest && used < want; i++) {
        const ddstore__piece *p = &s->request->pieces[i];
        uint64_t n = p->bytes < rest ? p->bytes : rest;
        uint64_t take = n < want - used ? n : want - used;
        memcpy(text + used, p->dst, (size_t)take);
        used += (size_t)take;
        rest -= n;
    }
    while (used < want) {
        struct iovec iov = {text + used, want - used};
        ssize_t got = ddstore__channel_receive(s->ch, &iov, 1, MSG_WAITALL);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    return ddstore__refusal(f, text, err);
}

/* Looks at the answer's head once it is there. */
static int check_head(ddstore__stream *s, ddstore_error *err)
{
    ddstore__frame f;
    if (!ddstore__frame_decode(s->head, &f))
        return ddstore__fail(err, DDSTORE_EFABRIC,
                             "the peer's answer can't be understood");
    if (f.type != DDSTORE__DATA)
        return take_refusal(s, &f, err);
    if (f.bytes != s->expected - DDSTORE__FRAME_BYTES)
        return ddstore__fail(err, DDSTORE_EFABRIC,
                             "the peer's answer has the wrong length");
    return DDSTORE_OK;
}

static int broke(ddstore__reader *reader, const ddstore__access *access,
                 ddstore__stream *s, ddstore_error *err)
{
    ddstore__channel_discard(s->ch);
    s->ch = NULL;
    if (s->tries++ >= TRIES)
        return broke_often(s, err);
    return ask(reader, access, s, err);
}

static int late(ddstore__stream *s, const ddstore__access *access, ddstore_error *err)
{
    ddstore__peer *peer = s->request->from->peer;
    ddstore__wait wait = {s->deadline_ns, access->patience.closed};
    int rc = ddstore__wait_check(&wait, err);
    if (rc != DDSTORE_ETIMEDOUT)
        return rc;
    ddstore__peer_lose(peer, "it sent nothing in time (DDSTORE_READ_TIMEOUT_S)");
    return ddstore__peer_lost_error(peer, err);
}

/* Progress moves the deadline; now and then it is asked whether to go on at all. */
static int went_on(ddstore__stream *s, const ddstore__access *access,
                   ddstore_error *err)
{
    int64_t now = ddstore__now_ns();
    s->deadline_ns = now + access->patience.timeout_ns;
    if (now < s->look_ns)
        return DDSTORE_OK;
    s->look_ns = now + SLICE_MS * DDSTORE__MS;
    return ddstore__wait_check(
        &(ddstore__wait){DDSTORE__FOREVER, access->patience.closed}, err);
}

/* One receive: 1 all answers of the stream are in, 0 more is to come, < 0 a code. */
static int receive(ddstore__reader *reader, const ddstore__access *access,
                   ddstore__stream *s, bool alone, ddstore_error *err)
{
    struct iovec iov[IOVS];
    bool head = s->got < DDSTORE__FRAME_BYTES;
    /* A refusal is shorter than what is waited for: it is seen a slice later. */
    int flags = alone ? MSG_WAITALL : MSG_DONTWAIT;
    ssize_t got = ddstore__channel_receive(s->ch, iov, gather(s, iov), flags);
    if (got < 0)
        return broke(reader, access, s, err);
    if (got == 0)
        return late(s, access, err);
    advance(s, (uint64_t)got);
    int rc = head && s->got >= DDSTORE__FRAME_BYTES ? check_head(s, err) : DDSTORE_OK;
    if (rc)
        return rc;
    if (s->got < s->expected)
        return went_on(s, access, err);
    s->tries = 0; /* not before: who breaks off each time would never be given up */
    s->first = s->last;
    return s->first == s->request->n ? 1 : ask(reader, access, s, err);
}

static void end(ddstore__stream *s, bool clean)
{
    if (!s->ch)
        return;
    if (clean)
        ddstore__channel_release(s->ch);
    else
        ddstore__channel_discard(s->ch);
    s->ch = NULL;
}

static int fail(ddstore__stream *streams, size_t n, int rc)
{
    for (size_t i = 0; i < n; i++)
        end(&streams[i], false);
    return rc;
}

int ddstore__tcp_begin(ddstore__reader *reader, const ddstore__access *access,
                       const ddstore__request *requests, size_t n,
                       ddstore__stream **out, size_t *failed, ddstore_error *err)
{
    ddstore__stream *streams =
        ddstore__reader_scratch(reader, DDSTORE__SCRATCH_STREAMS, n * sizeof(*streams));
    if (!streams)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a read");
    memset(streams, 0, n * sizeof(*streams));
    for (size_t i = 0; i < n; i++) {
        streams[i].request = &requests[i];
        int rc = ask(reader, access, &streams[i], err);
        if (rc) {
            *failed = i;
            return fail(streams, i + 1, rc);
        }
    }
    *out = streams;
    return DDSTORE_OK;
}

/* Takes what is there from all streams until each has all. */
static int finish_many(ddstore__reader *reader, const ddstore__access *access,
                       ddstore__stream *streams, size_t n, size_t *failed,
                       ddstore_error *err)
{
    struct pollfd *polls = malloc(n * sizeof(*polls));
    if (!polls)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a read");
    int rc = DDSTORE_OK;
    for (size_t open = n; open && rc >= 0;) {
        for (size_t i = 0; i < n; i++)
            polls[i] =
                (struct pollfd){streams[i].ch ? streams[i].ch->fd : -1, POLLIN, 0};
        int ready = poll(polls, n, SLICE_MS);
        for (size_t i = 0; i < n && rc >= 0; i++) {
            if (!streams[i].ch)
                continue;
            if (polls[i].revents)
                rc = receive(reader, access, &streams[i], false, err);
            else if (ready <= 0)
                rc = late(&streams[i], access, err);
            else
                rc = 0;
            if (rc == 1) {
                end(&streams[i], true);
                open--;
            } else if (rc < 0) {
                *failed = i;
            }
        }
    }
    free(polls);
    return rc < 0 ? rc : DDSTORE_OK;
}

int ddstore__tcp_finish(ddstore__reader *reader, const ddstore__access *access,
                        ddstore__stream *streams, size_t n, size_t *failed,
                        ddstore_error *err)
{
    int rc = 0;
    *failed = 0;
    if (n == 1) {
        while ((rc = receive(reader, access, streams, true, err)) == 0)
            ;
        end(streams, rc == 1);
        rc = rc < 0 ? rc : DDSTORE_OK;
    } else {
        rc = finish_many(reader, access, streams, n, failed, err);
    }
    return rc ? fail(streams, n, rc) : DDSTORE_OK;
}

/* Sending answers: small runs packed into one buffer, large ones straight from their
 * segment; a cursor of run and byte is all that a half-sent answer keeps. */
#include "copy.h"
#include "server_conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The reader takes one pack while the next is filled. */
#define PACK_BYTES (128u << 10)
#define PACK_IOVS  1024
#define PACK_BELOW (16u << 10) /* mean bytes a run below which packing wins */
#define IOVS       64
#define TURN_BYTES (1u << 20) /* sent to one connection before the others' turn */

static uint8_t pack[DDSTORE__FRAME_BYTES + PACK_BYTES]; /* the progress thread's */

static void start(ddstore__conn *c, uint8_t type, uint16_t status, const uint8_t *base,
                  uint64_t bytes)
{
    ddstore__frame_encode(
        &(ddstore__frame){.type = type, .status = status, .bytes = bytes}, c->head);
    ddstore__put64(c->one_run, 0);
    ddstore__put64(c->one_run + 8, bytes);
    c->runs_in_input = false;
    c->runs = 1;
    c->at_run = 0;
    c->at_byte = c->sent = 0;
    c->total = DDSTORE__FRAME_BYTES + bytes;
    c->base = base;
}

void ddstore__answer_segment(ddstore__conn *c, ddstore__segment *seg,
                             const uint8_t *runs, uint32_t n, uint64_t bytes)
{
    (void)runs; /* they stand in the input at runs_at until the answer is out */
    start(c, DDSTORE__DATA, 0, seg->map, bytes);
    c->runs_in_input = true;
    c->runs = n;
    c->seg = seg;
}

void ddstore__answer_own(ddstore__conn *c, uint8_t *data, size_t bytes)
{
    start(c, DDSTORE__DATA, 0, data, bytes);
    c->own = data;
}

void ddstore__answer_bytes(ddstore__conn *c, uint8_t type, const void *data,
                           size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (!copy) {
        start(c, DDSTORE__REFUSED, DDSTORE__S_BUSY, NULL, 0);
        return;
    }
    if (bytes)
        memcpy(copy, data, bytes);
    start(c, type, 0, copy, bytes);
    c->own = copy;
}

void ddstore__answer_refuse(ddstore__conn *c, uint16_t status, const char *why)
{
    ddstore__answer_bytes(c, DDSTORE__REFUSED, why, strlen(why));
    ddstore__put16(c->head + 6, status);
}

void ddstore__answer_end(ddstore__conn *c)
{
    if (c->seg)
        ddstore__segment_unref(c->seg);
    free(c->own);
    c->seg = NULL;
    c->own = NULL;
    c->total = 0;
}

static const uint8_t *run_at(const ddstore__conn *c, uint32_t i)
{
    return c->runs_in_input ? c->in + c->runs_at + (size_t)i * DDSTORE__RUN_BYTES
                            : c->one_run;
}

/* The next pieces of the answer from its cursor on, at most max of them and about
 * `bytes` bytes. */
static int pieces(const ddstore__conn *c, struct iovec *iov, int max, size_t bytes)
{
    int n = 0;
    uint64_t skip = c->at_byte;
    if (c->sent < DDSTORE__FRAME_BYTES)
        iov[n++] =
            (struct iovec){(void *)(c->head + c->sent), DDSTORE__FRAME_BYTES - c->sent};
    for (uint32_t i = c->at_run; i < c->runs && n < max && bytes; i++, skip = 0) {
        const uint8_t *run = run_at(c, i);
        uint64_t length = ddstore__get64(run + 8) - skip;
        if (!length)
            continue;
        if (length > bytes)
            length = bytes;
        iov[n++] = (struct iovec){(void *)(c->base + ddstore__get64(run) + skip),
                                  (size_t)length};
        bytes -= (size_t)length;
    }
    return n;
}

/* Copies the next pieces into the pack buffer; returns their bytes. */
static size_t fill_pack(const ddstore__conn *c)
{
    static struct iovec iov[PACK_IOVS]; /* the progress thread's */
    int n = pieces(c, iov, PACK_IOVS, PACK_BYTES);
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += iov[i].iov_len;
    ddstore__copy_pieces(pack, iov, (size_t)n);
    return bytes;
}

static void advance(ddstore__conn *c, size_t bytes)
{
    uint64_t body = bytes;
    if (c->sent < DDSTORE__FRAME_BYTES) {
        uint64_t head = DDSTORE__FRAME_BYTES - c->sent;
        body -= head < body ? head : body;
    }
    c->sent += bytes;
    while (c->at_run < c->runs) {
        uint64_t left = ddstore__get64(run_at(c, c->at_run) + 8) - c->at_byte;
        if (body < left) {
            c->at_byte += body;
            return;
        }
        body -= left;
        c->at_byte = 0;
        c->at_run++;
    }
}

static ssize_t send_some(ddstore__conn *c, size_t *tried)
{
    if ((c->total - DDSTORE__FRAME_BYTES) / c->runs < PACK_BELOW) {
        *tried = fill_pack(c);
        return send(c->fd, pack, *tried, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    struct iovec iov[IOVS];
    struct msghdr message = {.msg_iov = iov,
                             .msg_iovlen = (size_t)pieces(c, iov, IOVS, TURN_BYTES)};
    *tried = 0;
    for (size_t i = 0; i < message.msg_iovlen; i++)
        *tried += iov[i].iov_len;
    return sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int ddstore__answer_push(ddstore__conn *c)
{
    for (size_t turn = 0; c->sent < c->total;) {
        size_t tried;
        ssize_t put = send_some(c, &tried);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno == EAGAIN ? 0 : -1;
        advance(c, (size_t)put);
        turn += (size_t)put;
        if (c->sent < c->total && ((size_t)put < tried || turn >= TURN_BYTES))
            return 0;
    }
    ddstore__answer_end(c);
    return 1;
}

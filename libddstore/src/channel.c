/* Channels: the pool of a peer's connections, and asking over one. */
#include "channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define IDLE_NS  (60 * DDSTORE__S) /* an idle channel is closed after that */
#define IDLE_MAX 16                /* idle channels kept a peer and run */

static void unlink_locked(ddstore__channel *ch)
{
    for (ddstore__channel **at = &ch->peer->channels; *at; at = &(*at)->next)
        if (*at == ch) {
            *at = ch->next;
            return;
        }
}

static void destroy(ddstore__channel *ch)
{
    ddstore__fd_close(ch->fd);
    free(ch);
}

static ddstore__channel *take_idle(ddstore__peer *peer, const uint8_t run[16])
{
    pthread_mutex_lock(&peer->lock);
    ddstore__channel *ch = peer->channels;
    while (ch && !(ch->idle && ddstore__same16(ch->run, run)))
        ch = ch->next;
    if (ch)
        ch->idle = false;
    pthread_mutex_unlock(&peer->lock);
    return ch;
}

static int make(ddstore__peer *peer, const ddstore__ticket *ticket,
                const ddstore__patience *patience, ddstore__channel **out,
                ddstore_error *err)
{
    ddstore__channel *ch = calloc(1, sizeof(*ch));
    if (!ch)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a channel");
    int rc = ddstore__channel_connect(peer, ticket, patience, &ch->fd, err);
    if (rc) {
        free(ch);
        return rc;
    }
    ch->peer = peer;
    memcpy(ch->run, ticket->run, 16);
    pthread_mutex_lock(&peer->lock);
    ch->next = peer->channels;
    peer->channels = ch;
    pthread_mutex_unlock(&peer->lock);
    *out = ch;
    return DDSTORE_OK;
}

/* Whether a lost peer said before its end, on an idle channel, that it was closing. */
static bool said_closing(ddstore__peer *peer, const uint8_t run[16])
{
    bool said = false;
    pthread_mutex_lock(&peer->lock);
    for (ddstore__channel *ch = peer->channels; ch && !said; ch = ch->next) {
        uint8_t head[DDSTORE__FRAME_BYTES];
        ddstore__frame f;
        said = ch->idle && ddstore__same16(ch->run, run) &&
               recv(ch->fd, head, sizeof(head), MSG_PEEK | MSG_DONTWAIT) ==
                   (ssize_t)sizeof(head) &&
               ddstore__frame_decode(head, &f) && f.type == DDSTORE__CLOSING;
    }
    pthread_mutex_unlock(&peer->lock);
    return said;
}

static int lost(ddstore__peer *peer, const uint8_t run[16], ddstore_error *err)
{
    if (said_closing(peer, run))
        return ddstore__fail(err, DDSTORE_ECLOSED, "its store was freed");
    return ddstore__peer_lost_error(peer, err);
}

int ddstore__channel_acquire(ddstore__peer *peer, const ddstore__ticket *ticket,
                             const ddstore__patience *patience, bool new_only,
                             ddstore__channel **out, ddstore_error *err)
{
    if (atomic_load(&peer->lost))
        return lost(peer, ticket->run, err);
    if (!new_only && (*out = take_idle(peer, ticket->run)))
        return DDSTORE_OK;
    int rc = make(peer, ticket, patience, out, err);
    /* It may have been lost while the new channel was not in its list yet. */
    if (!rc && atomic_load(&peer->lost)) {
        ddstore__channel_discard(*out);
        return lost(peer, ticket->run, err);
    }
    return rc;
}

/* Takes one idle channel that is too many or too old out of the list, else NULL. */
static ddstore__channel *surplus_locked(ddstore__peer *peer, int64_t now)
{
    int idle = 0;
    for (ddstore__channel *ch = peer->channels; ch; ch = ch->next)
        if (ch->idle && (++idle > IDLE_MAX || now - ch->idle_since > IDLE_NS)) {
            unlink_locked(ch);
            return ch;
        }
    return NULL;
}

void ddstore__channel_release(ddstore__channel *ch)
{
    ddstore__peer *peer = ch->peer;
    int64_t now = ddstore__now_ns();
    pthread_mutex_lock(&peer->lock);
    ch->idle = true;
    ch->idle_since = now;
    ddstore__channel *old = surplus_locked(peer, now);
    pthread_mutex_unlock(&peer->lock);
    if (old)
        destroy(old);
}

void ddstore__channel_discard(ddstore__channel *ch)
{
    pthread_mutex_lock(&ch->peer->lock);
    unlink_locked(ch);
    pthread_mutex_unlock(&ch->peer->lock);
    destroy(ch);
}

void ddstore__channel_shut_all(ddstore__peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    for (ddstore__channel *ch = peer->channels; ch; ch = ch->next)
        (void)shutdown(ch->fd, SHUT_RDWR);
    pthread_mutex_unlock(&peer->lock);
}

void ddstore__channel_close_all(ddstore__peer *peer)
{
    while (peer->channels) {
        ddstore__channel *ch = peer->channels;
        peer->channels = ch->next;
        destroy(ch);
    }
}

int ddstore__channel_send(ddstore__channel *ch, const void *data, size_t bytes,
                          const ddstore__patience *patience, ddstore_error *err)
{
    const uint8_t *at = data;
    ddstore__wait wait = {ddstore__now_ns() + patience->timeout_ns, patience->closed};
    while (bytes) {
        ssize_t put = send(ch->fd, at, bytes, MSG_NOSIGNAL); /* at most 100 ms */
        if (put > 0) {
            at += put;
            bytes -= (size_t)put;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return DDSTORE_ESYS;
        int rc = ddstore__wait_check(&wait, err);
        if (rc)
            return rc;
    }
    return DDSTORE_OK;
}

ssize_t ddstore__channel_receive(ddstore__channel *ch, struct iovec *iov, size_t n,
                                 int flags)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t got = recvmsg(ch->fd, &message, flags);
    if (got > 0)
        return got;
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

int ddstore__refusal(const ddstore__frame *f, const char *text, ddstore_error *err)
{
    if (!*text)
        text = "no reason was given";
    switch (f->type == DDSTORE__CLOSING ? DDSTORE__S_RUN : f->status) {
    case DDSTORE__S_RUN:
    case DDSTORE__S_SEGMENT:
        return ddstore__fail(err, DDSTORE_ECLOSED, "its store was freed");
    case DDSTORE__S_NONE:
        return ddstore__fail(err, DDSTORE_EKEY, "%s", text);
    default:
        return ddstore__fail(err, DDSTORE_EFABRIC, "the request was refused: %s", text);
    }
}

/* Receives exactly `bytes` bytes; codes as ddstore__channel_send, ETIMEDOUT too. */
static int receive_all(ddstore__channel *ch, void *data, size_t bytes,
                       const ddstore__patience *patience, ddstore_error *err)
{
    struct iovec iov = {data, bytes};
    ddstore__wait wait = {ddstore__now_ns() + patience->timeout_ns, patience->closed};
    while (iov.iov_len) {
        ssize_t got = ddstore__channel_receive(ch, &iov, 1, MSG_WAITALL);
        if (got < 0)
            return DDSTORE_ESYS;
        iov.iov_base = (uint8_t *)iov.iov_base + got;
        iov.iov_len -= (size_t)got;
        if (got)
            wait.deadline_ns = ddstore__now_ns() + patience->timeout_ns;
        int rc = got ? DDSTORE_OK : ddstore__wait_check(&wait, err);
        if (rc)
            return rc;
    }
    return DDSTORE_OK;
}

/* The body of an answer that is not too long: text of a refusal, or *data. */
static int take_answer(ddstore__channel *ch, const ddstore__patience *patience,
                       uint8_t **data, size_t *bytes, ddstore_error *err)
{
    uint8_t head[DDSTORE__FRAME_BYTES];
    ddstore__frame f;
    int rc = receive_all(ch, head, sizeof(head), patience, err);
    if (rc)
        return rc;
    if (!ddstore__frame_decode(head, &f) || f.bytes > DDSTORE__RECORD_MAX)
        return DDSTORE_ESYS;
    char *body = calloc(1, f.bytes + 1);
    if (!body)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for an answer");
    rc = receive_all(ch, body, f.bytes, patience, err);
    if (!rc && f.type != DDSTORE__DATA)
        rc = ddstore__refusal(&f, body, err);
    if (!rc && data) {
        *data = (uint8_t *)body;
        *bytes = f.bytes;
        return DDSTORE_OK;
    }
    free(body);
    return rc;
}

/* DDSTORE_ESYS: the connection broke. */
static int ask_over(ddstore__channel *ch, const ddstore__patience *patience,
                    const uint8_t *request, size_t n, uint8_t **data, size_t *bytes,
                    ddstore_error *err)
{
    int rc = ddstore__channel_send(ch, request, n, patience, err);
    if (!rc)
        rc = take_answer(ch, patience, data, bytes, err);
    if (rc == DDSTORE_OK || rc == DDSTORE_EKEY)
        ddstore__channel_release(ch);
    else
        ddstore__channel_discard(ch);
    return rc;
}

int ddstore__channel_silent(ddstore__peer *peer, const ddstore__patience *patience,
                            const char *why, ddstore_error *err)
{
    if (!patience->probe) {
        ddstore__peer_lose(peer, why);
        return ddstore__peer_lost_error(peer, err);
    }
    return ddstore__fail(err, DDSTORE_EPEER, "process %u on host %s: %s",
                         peer->contact.process.pid, peer->contact.process.host, why);
}

int ddstore__channel_ask(ddstore__peer *peer, const ddstore__ticket *ticket,
                         const ddstore__patience *patience, uint8_t type,
                         const char *text, uint8_t **data, size_t *bytes,
                         ddstore_error *err)
{
    uint8_t request[DDSTORE__FRAME_BYTES + DDSTORE__TEXT_MAX];
    size_t n = text ? strlen(text) : 0;
    int rc = DDSTORE_ESYS;
    int64_t deadline = ddstore__now_ns() + patience->timeout_ns;
    if (n > DDSTORE__TEXT_MAX)
        return ddstore__fail(err, DDSTORE_EINVAL, "the name is too long");
    ddstore__frame_encode(&(ddstore__frame){.type = type, .bytes = n}, request);
    for (size_t i = 0; i < n; i++) /* the wire counts bytes: without the text's end */
        request[DDSTORE__FRAME_BYTES + i] = (uint8_t)text[i];
    for (int attempt = 0; attempt < 2 && rc == DDSTORE_ESYS; attempt++) {
        ddstore__channel *ch = NULL;
        ddstore__patience left = ddstore__patience_left(patience, deadline);
        rc = ddstore__channel_acquire(peer, ticket, &left, attempt > 0, &ch, err);
        if (rc)
            return rc;
        rc = ask_over(ch, &left, request, DDSTORE__FRAME_BYTES + n, data, bytes, err);
        if (rc && atomic_load(&peer->lost))
            return ddstore__peer_lost_error(peer, err);
        if (rc == DDSTORE_ETIMEDOUT)
            return ddstore__channel_silent(
                peer, patience, "it gave no answer in time (DDSTORE_READ_TIMEOUT_S)",
                err);
    }
    if (rc == DDSTORE_ESYS)
        return ddstore__fail(err, DDSTORE_EPEER,
                             "process %u on host %s broke off the connection twice",
                             peer->contact.process.pid, peer->contact.process.host);
    return rc;
}

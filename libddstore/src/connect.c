/* Opening a channel: the peer's addresses in turn, then the proof of the run's secret
 * by both ends (design: the hello). */
#include "channel.h"
#include "iface.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define TURN_NS  (2 * DDSTORE__S) /* for one address while there are others */
#define SLICE_MS 100

/* What one address came to. NOBODY: the peer is gone; UNREACHED and FULL: worth trying
 * again. */
enum outcome {
    CONNECTED,
    NOBODY,
    UNREACHED,
    FULL,
    OTHER_PROCESS,
    RUN_GONE,
    UNPROVEN,
    STOPPED
};

/* Once a peer; those of a subnet of this host first. */
static void sort_addresses(ddstore__peer *peer)
{
    uint8_t order[DDSTORE__ADDRESSES] = {0};
    size_t n = 0;
    pthread_mutex_lock(&peer->lock);
    bool sorted = peer->n_addresses > 0;
    pthread_mutex_unlock(&peer->lock);
    if (sorted)
        return;
    for (int near = 1; near >= 0; near--)
        for (uint8_t i = 0; i < DDSTORE__ADDRESSES; i++) {
            const ddstore__address *a = &peer->contact.address[i];
            if (a->family && ddstore__iface_is_near(a) == near)
                order[n++] = i;
        }
    pthread_mutex_lock(&peer->lock);
    memcpy(peer->order, order, n);
    peer->n_addresses = n;
    pthread_mutex_unlock(&peer->lock);
}

static void prefer(ddstore__peer *peer, uint8_t which)
{
    pthread_mutex_lock(&peer->lock);
    for (size_t i = peer->n_addresses; i-- > 1;)
        if (peer->order[i] == which) {
            peer->order[i] = peer->order[i - 1];
            peer->order[i - 1] = which;
        }
    pthread_mutex_unlock(&peer->lock);
}

static int dial(const ddstore__address *a)
{
    ddstore__fd_begin();
    int fd = ddstore__fd_end(socket(a->family == 4 ? AF_INET : AF_INET6,
                                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    int rc;
    if (a->family == 4) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(a->port)};
        memcpy(&in.sin_addr, a->ip, 4);
        rc = connect(fd, (struct sockaddr *)&in, sizeof(in));
    } else {
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6,
                                   .sin6_port = htons(a->port),
                                   .sin6_scope_id = a->scope};
        memcpy(&in6.sin6_addr, a->ip, 16);
        rc = connect(fd, (struct sockaddr *)&in6, sizeof(in6));
    }
    if (rc != 0 && errno != EINPROGRESS) {
        int saved = errno;
        ddstore__fd_close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

/* Makes the connected socket a blocking one whose calls take at most SLICE_MS. */
static void tune(int fd, int64_t timeout_ns)
{
    int64_t ms =
        timeout_ns / DDSTORE__MS + 1000; /* the reader's own deadline is first */
    int on = 1, user_ms = (int)(ms < INT32_MAX ? ms : INT32_MAX);
    struct timeval slice = {.tv_usec = SLICE_MS * 1000};
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof(slice));
}

/* Waits for the events; 0: they came, else a code of ddstore__wait_check. */
static int await(const ddstore__peer *peer, int fd, short events,
                 const ddstore__wait *wait, ddstore_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        if (poll(&p, 1, SLICE_MS) > 0)
            return DDSTORE_OK;
        int rc =
            atomic_load(&peer->lost) ? DDSTORE_EPEER : ddstore__wait_check(wait, err);
        if (rc)
            return rc;
    }
}

static int receive(const ddstore__peer *peer, int fd, void *data, size_t bytes,
                   const ddstore__wait *wait, ddstore_error *err)
{
    for (uint8_t *at = data; bytes;) {
        int rc = await(peer, fd, POLLIN, wait, err);
        if (rc)
            return rc;
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return DDSTORE_ESYS;
        at += got > 0 ? got : 0;
        bytes -= got > 0 ? (size_t)got : 0;
    }
    return DDSTORE_OK;
}

static enum outcome refused(uint16_t status)
{
    return status == DDSTORE__S_PROCESS ? OTHER_PROCESS
           : status == DDSTORE__S_RUN   ? RUN_GONE
           : status == DDSTORE__S_BUSY  ? FULL
                                        : NOBODY;
}

/* The hello: both ends prove the secret; ours goes out without waiting for a reply. */
static enum outcome greet(const ddstore__peer *peer, int fd,
                          const ddstore__ticket *ticket, const ddstore__wait *wait,
                          int *code, ddstore_error *err)
{
    uint8_t out[DDSTORE__FRAME_BYTES + DDSTORE__HELLO_BYTES];
    uint8_t in[DDSTORE__FRAME_BYTES + DDSTORE__WELCOME_BYTES], expected[16];
    uint8_t *hello = out + DDSTORE__FRAME_BYTES, *body = in + DDSTORE__FRAME_BYTES;
    ddstore__frame f = {.type = DDSTORE__HELLO, .bytes = DDSTORE__HELLO_BYTES};
    ddstore__frame_encode(&f, out);
    memcpy(hello, ticket->run, 16);
    ddstore__random(hello + 16, 16);
    memcpy(hello + 32, peer->contact.uid, 16);
    memcpy(hello + 48, ticket->uid, 16);
    if (send(fd, out, sizeof(out), MSG_NOSIGNAL) != (ssize_t)sizeof(out) &&
        errno != EPIPE && errno != ECONNRESET) /* then it may have said why */
        return UNREACHED;
    *code = receive(peer, fd, in, DDSTORE__FRAME_BYTES, wait, err);
    if (*code)
        return *code == DDSTORE_ESYS ? UNREACHED : STOPPED;
    if (!ddstore__frame_decode(in, &f))
        return OTHER_PROCESS;
    if (f.type == DDSTORE__REFUSED)
        return refused(f.status);
    if (f.type != DDSTORE__WELCOME || f.bytes != DDSTORE__WELCOME_BYTES)
        return OTHER_PROCESS;
    *code = receive(peer, fd, body, DDSTORE__WELCOME_BYTES, wait, err);
    if (*code)
        return *code == DDSTORE_ESYS ? UNREACHED : STOPPED;
    ddstore__proof(ticket->secret, 'S', hello, body, expected);
    if (!ddstore__same16(expected, body + 16))
        return UNPROVEN;
    f = (ddstore__frame){.type = DDSTORE__PROVE, .bytes = DDSTORE__PROVE_BYTES};
    ddstore__frame_encode(&f, out);
    ddstore__proof(ticket->secret, 'C', hello, body, out + DDSTORE__FRAME_BYTES);
    size_t bytes = DDSTORE__FRAME_BYTES + DDSTORE__PROVE_BYTES;
    return send(fd, out, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? CONNECTED : UNREACHED;
}

static enum outcome try_address(const ddstore__peer *peer, const ddstore__address *a,
                                const ddstore__ticket *ticket,
                                const ddstore__wait *wait, int64_t timeout_ns, int *fd,
                                int *code, ddstore_error *err)
{
    *fd = dial(a);
    if (*fd < 0) {
        if (errno == EMFILE || errno == ENFILE) {
            *code = ddstore__fail_errno(
                err, errno, "no connection to process %u on host %s",
                peer->contact.process.pid, peer->contact.process.host);
            return STOPPED;
        }
        return errno == ECONNREFUSED ? NOBODY : UNREACHED;
    }
    int failed = 0;
    socklen_t bytes = sizeof(failed);
    enum outcome outcome;
    *code = await(peer, *fd, POLLOUT, wait, err);
    if (*code)
        outcome = STOPPED;
    else if (getsockopt(*fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) != 0 || failed)
        outcome = failed == ECONNREFUSED ? NOBODY : UNREACHED;
    else
        outcome = greet(peer, *fd, ticket, wait, code, err);
    if (outcome == CONNECTED) {
        tune(*fd, timeout_ns);
        return CONNECTED;
    }
    ddstore__fd_close(*fd);
    *fd = -1;
    return outcome;
}

/* All addresses once. CONNECTED; RUN_GONE, UNPROVEN or STOPPED as soon as one says so;
 * FULL or UNREACHED if it is worth trying again; else NOBODY. */
static enum outcome try_all(ddstore__peer *peer, const ddstore__ticket *ticket,
                            const ddstore__patience *patience, int64_t deadline,
                            int *fd, int *code, ddstore_error *err)
{
    enum outcome result = NOBODY;
    uint8_t order[DDSTORE__ADDRESSES] = {0};
    pthread_mutex_lock(&peer->lock);
    size_t n = peer->n_addresses;
    memcpy(order, peer->order, sizeof(order));
    pthread_mutex_unlock(&peer->lock);
    for (size_t i = 0; i < n; i++) {
        int64_t turn = ddstore__now_ns() + TURN_NS;
        ddstore__wait wait = {n > 1 && turn < deadline ? turn : deadline,
                              patience->closed};
        enum outcome one = try_address(peer, &peer->contact.address[order[i]], ticket,
                                       &wait, patience->timeout_ns, fd, code, err);
        if (one == CONNECTED) {
            prefer(peer, order[i]);
            return one;
        }
        if (one == STOPPED && *code == DDSTORE_ETIMEDOUT)
            one = UNREACHED;
        if (one == RUN_GONE || one == UNPROVEN || one == STOPPED)
            return one;
        if (one == FULL || (one == UNREACHED && result != FULL))
            result = one;
    }
    return result;
}

/* Nobody answered until the deadline. */
static int too_late(ddstore__peer *peer, const ddstore__patience *patience, bool full,
                    ddstore_error *err)
{
    if (!full)
        return ddstore__channel_silent(peer, patience,
                                       "none of its addresses could be reached in time "
                                       "(DDSTORE_READ_TIMEOUT_S)",
                                       err);
    return ddstore__fail(
        err, DDSTORE_EPEER,
        "process %u on host %s lives and takes no more connections: it "
        "has too few file descriptors or too little memory (raise "
        "ulimit -n there)",
        peer->contact.process.pid, peer->contact.process.host);
}

int ddstore__channel_connect(ddstore__peer *peer, const ddstore__ticket *ticket,
                             const ddstore__patience *patience, int *fd,
                             ddstore_error *err)
{
    ddstore__wait wait = {ddstore__now_ns() + patience->timeout_ns, patience->closed};
    sort_addresses(peer);
    for (;;) {
        int code = DDSTORE_OK;
        enum outcome outcome =
            try_all(peer, ticket, patience, wait.deadline_ns, fd, &code, err);
        switch (outcome) {
        case CONNECTED:
            return DDSTORE_OK;
        case RUN_GONE:
            return ddstore__fail(err, DDSTORE_ECLOSED, "its store was freed");
        case UNPROVEN:
            return ddstore__fail(
                err, DDSTORE_ECONFLICT,
                "process %u on host %s does not know this run's secret",
                peer->contact.process.pid, peer->contact.process.host);
        case STOPPED:
            return atomic_load(&peer->lost) ? ddstore__peer_lost_error(peer, err)
                                            : code;
        case NOBODY:
        case OTHER_PROCESS:
            ddstore__peer_lose(peer, "nobody listens at its addresses any more");
            return ddstore__peer_lost_error(peer, err);
        case UNREACHED:
        case FULL:
            break;
        }
        code = ddstore__wait_check(&wait, err);
        if (code == DDSTORE_ETIMEDOUT)
            return too_late(peer, patience, outcome == FULL, err);
        if (code)
            return code;
        ddstore__sleep_ns(SLICE_MS * DDSTORE__MS);
    }
}

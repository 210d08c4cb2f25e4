/*
 * The serving side of channels, run by the progress thread alone: proves who connects,
 * checks each request against this process's own tables, and answers it from the
 * segment without blocking. A slow reader costs its connection a cursor, nobody else
 * anything.
 */
#include "progress.h"

#include "run.h"
#include "segment.h"
#include "server_conn.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_ROOM 4096        /* of a connection's input */
#define KEPT_ROOM  (64u << 10) /* larger input buffers go after their request */
#define STRANGERS  256         /* connections that have not proven themselves */
#define PROOF_S    10
#define GRACE_S    1 /* after that one that has not gives way to a newcomer */

struct ddstore__server {
    int epoll, spare; /* spare: given up for a moment when descriptors run out */
    uint8_t uid[16];
    int64_t stall_ns, next_sweep;
    ddstore__conn *conns, *dropped; /* newest first; freed when no event names them */
    unsigned strangers, busy;
    uint64_t refused, turned_away;
    int64_t next_log; /* of those turned away */
};

static int spare_of(int epoll)
{
    ddstore__fd_begin();
    return ddstore__fd_end(fcntl(epoll, F_DUPFD_CLOEXEC, 0));
}

ddstore__server *ddstore__server_open(int epoll, const uint8_t uid[16], double stall_s)
{
    ddstore__server *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->epoll = epoll;
    s->spare = spare_of(epoll);
    s->stall_ns = (int64_t)(stall_s * 1e9); /* the setting is at most 1e9 s */
    memcpy(s->uid, uid, 16);
    return s;
}

/* Any time; events that still name it find that it has no descriptor. */
static void drop(ddstore__server *s, ddstore__conn *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    s->strangers -= c->state != CONN_OPEN;
    s->busy -= c->busy;
    ddstore__answer_end(c);
    if (c->run)
        ddstore__run_unref(c->run);
    /* By hand: a process that is being forked may hold the socket open for a moment. */
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    ddstore__fd_close(c->fd);
    free(c->in);
    c->fd = -1;
    c->in = NULL;
    c->next = s->dropped;
    s->dropped = c;
}

static void free_dropped(ddstore__server *s)
{
    for (ddstore__conn *c; (c = s->dropped);) {
        s->dropped = c->next;
        free(c);
    }
}

void ddstore__server_close(ddstore__server *s)
{
    if (!s)
        return;
    for (ddstore__conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        drop(s, c);
    }
    free_dropped(s);
    ddstore__fd_close(s->spare);
    free(s);
}

static void tune(int fd, int64_t stall_ns)
{
    int64_t ms = stall_ns / DDSTORE__MS;
    int on = 1, idle = 60, timeout_ms = ms < INT32_MAX ? (int)ms : INT32_MAX;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
                     sizeof(timeout_ms));
}

/* Says so and closes: the peer tries again until its deadline. */
static void turn_away(int fd)
{
    uint8_t frame[DDSTORE__FRAME_BYTES];
    ddstore__frame_encode(
        &(ddstore__frame){.type = DDSTORE__REFUSED, .status = DDSTORE__S_BUSY}, frame);
    (void)!send(fd, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
    ddstore__fd_close(fd);
}

/* Whether one more may come: the oldest that has proven nothing gives way, so that idle
 * ones keep nobody out. */
static bool make_way(ddstore__server *s)
{
    ddstore__conn *oldest = NULL;
    if (s->strangers < STRANGERS)
        return true;
    for (ddstore__conn *c = s->conns; c; c = c->next)
        if (c->state != CONN_OPEN)
            oldest = c;
    if (!oldest || ddstore__now_ns() - oldest->since < GRACE_S * DDSTORE__S)
        return false;
    drop(s, oldest);
    return true;
}

static void take_in(ddstore__server *s, int fd)
{
    ddstore__conn *c = calloc(1, sizeof(*c));
    uint8_t *in = malloc(FIRST_ROOM);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (!c || !in || !make_way(s) ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        free(in);
        turn_away(fd);
        return;
    }
    tune(fd, s->stall_ns);
    c->fd = fd;
    c->in = in;
    c->room = FIRST_ROOM;
    c->since = ddstore__now_ns();
    c->next = s->conns;
    c->link = &s->conns;
    if (c->next)
        c->next->link = &c->next;
    s->conns = c;
    s->strangers++;
}

static int take_one(int listener, int flags)
{
    ddstore__fd_begin();
    return ddstore__fd_end(accept4(listener, NULL, NULL, flags));
}

/* No descriptor is left: the peer is refused at once instead of being left to wait. */
static void accept_and_refuse(ddstore__server *s, int listener)
{
    if (s->spare < 0) /* somebody else took it; the listener stays ready meanwhile */
        ddstore__sleep_ns(5 * DDSTORE__MS);
    ddstore__fd_close(s->spare);
    int fd = take_one(listener, SOCK_CLOEXEC);
    if (fd >= 0)
        turn_away(fd);
    s->spare = spare_of(s->epoll);
    s->turned_away++;
    if (ddstore__now_ns() < s->next_log)
        return; /* they try again, and that often */
    s->next_log = ddstore__now_ns() + 10 * DDSTORE__S;
    ddstore__log_later(DDSTORE_LOG_WARN,
                       "connections of peers were refused (%llu so far): no file "
                       "descriptor left (raise ulimit -n)",
                       (unsigned long long)s->turned_away);
}

void ddstore__server_accept(ddstore__server *s, int listener)
{
    for (int i = 0; i < 16; i++) {
        int fd = take_one(listener, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_in(s, fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            accept_and_refuse(s, listener);
            return; /* the others' turn */
        } else {
            return;
        }
    }
}

static void want(ddstore__server *s, ddstore__conn *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void refuse(ddstore__server *s, ddstore__conn *c, enum ddstore__status status,
                   const char *why)
{
    s->refused++;
    ddstore__log_later(DDSTORE_LOG_INFO, "request number %llu refused: %s",
                       (unsigned long long)s->refused, why);
    ddstore__answer_refuse(c, status, why);
}

static void greet(ddstore__server *s, ddstore__conn *c, const uint8_t *body)
{
    if (!ddstore__same16(body + 32, s->uid)) {
        refuse(s, c, DDSTORE__S_PROCESS, "another process listens here now");
        return;
    }
    ddstore__run *run = ddstore__run_find(body);
    if (!run) {
        refuse(s, c, DDSTORE__S_RUN, "this process serves no such run (any more)");
        return;
    }
    uint8_t welcome[DDSTORE__WELCOME_BYTES];
    memcpy(c->hello, body, sizeof(c->hello));
    ddstore__random(c->random, sizeof(c->random));
    memcpy(welcome, c->random, 16);
    ddstore__proof(run->secret, 'S', c->hello, c->random, welcome + 16);
    c->run = run;
    c->state = CONN_PROVE;
    ddstore__answer_bytes(c, DDSTORE__WELCOME, welcome, sizeof(welcome));
}

static void check_proof(ddstore__server *s, ddstore__conn *c, const uint8_t *body)
{
    uint8_t expected[16];
    ddstore__proof(c->run->secret, 'C', c->hello, c->random, expected);
    if (!ddstore__same16(expected, body)) {
        c->end = true;
        refuse(s, c, DDSTORE__S_PROOF, "the run's secret was not proven");
        return;
    }
    c->state = CONN_OPEN;
    s->strangers--;
}

static void serve_read(ddstore__server *s, ddstore__conn *c, const ddstore__frame *f,
                       const uint8_t *runs)
{
    ddstore__segment *seg = ddstore__segment_find(f->segment, c->run->id);
    if (!seg) {
        refuse(s, c, DDSTORE__S_SEGMENT, "this process has no such segment (any more)");
        return;
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t offset = ddstore__get64(runs + 16 * (size_t)i);
        uint64_t bytes = ddstore__get64(runs + 16 * (size_t)i + 8);
        if (offset > seg->map_bytes || bytes > seg->map_bytes - offset ||
            bytes > UINT64_MAX / 2 - sum) {
            ddstore__segment_unref(seg);
            refuse(s, c, DDSTORE__S_BAD, "a read reaches past its segment");
            return;
        }
        sum += bytes;
    }
    if (sum != f->bytes) {
        ddstore__segment_unref(seg);
        refuse(s, c, DDSTORE__S_BAD, "a read's lengths don't add up");
        return;
    }
    ddstore__answer_segment(c, seg, runs, f->count, sum);
}

static void serve_record(ddstore__server *s, ddstore__conn *c, const uint8_t *body,
                         size_t bytes)
{
    char name[DDSTORE__TEXT_MAX + 1];
    size_t size = 0;
    memcpy(name, body, bytes);
    name[bytes] = '\0';
    uint8_t *record =
        strlen(name) == bytes ? ddstore__run_record(c->run, name, &size) : NULL;
    if (!record)
        refuse(s, c, DDSTORE__S_NONE, "no variable of that name is published");
    else
        ddstore__answer_own(c, record, size);
}

static void serve_ping(ddstore__conn *c)
{
    uint8_t steps[8];
    ddstore__put64(steps, atomic_load(&c->run->steps));
    ddstore__answer_bytes(c, DDSTORE__DATA, steps, sizeof(steps));
}

/* One whole request. false: the connection is to be dropped. */
static bool serve(ddstore__server *s, ddstore__conn *c, const ddstore__frame *f,
                  const uint8_t *body, size_t bytes)
{
    if (c->state == CONN_HELLO && f->type == DDSTORE__HELLO) {
        greet(s, c, body);
        c->end = c->state == CONN_HELLO;
        return true;
    }
    if (c->state == CONN_PROVE && f->type == DDSTORE__PROVE) {
        check_proof(s, c, body);
        return true;
    }
    if (c->state != CONN_OPEN)
        return false;
    if (atomic_load(&c->run->closing)) {
        refuse(s, c, DDSTORE__S_RUN, "the store was freed");
        return true;
    }
    switch (f->type) {
    case DDSTORE__READ:
        serve_read(s, c, f, body);
        return true;
    case DDSTORE__RECORD:
        serve_record(s, c, body, bytes);
        return true;
    case DDSTORE__PING:
        serve_ping(c);
        return true;
    default:
        return false;
    }
}

/* Makes room for a request of `need` bytes. */
static bool make_room(ddstore__conn *c, size_t need)
{
    if (need <= c->room)
        return true;
    uint8_t *in = realloc(c->in, need);
    if (!in)
        return false;
    c->in = in;
    c->room = need;
    return true;
}

/* Sends what is to be sent; false: the connection is gone. */
static bool push(ddstore__server *s, ddstore__conn *c)
{
    bool was = c->busy;
    int rc = c->busy || c->total ? ddstore__answer_push(c) : 1;
    if (rc < 0 || (rc == 1 && c->end))
        return false;
    c->busy = rc == 0;
    if (c->busy != was) {
        s->busy += c->busy ? 1u : -1u;
        want(s, c, c->busy ? EPOLLOUT : EPOLLIN);
    }
    return true;
}

/* Serves whole requests from the input until one can't be answered at once. */
static bool serve_input(ddstore__server *s, ddstore__conn *c)
{
    size_t used = 0;
    while (!c->busy && c->have - used >= DDSTORE__FRAME_BYTES) {
        ddstore__frame f;
        int64_t body;
        if (!ddstore__frame_decode(c->in + used, &f) ||
            (body = ddstore__request_body(&f)) < 0)
            return false;
        size_t need = DDSTORE__FRAME_BYTES + (size_t)body;
        if (c->have - used < need) {
            if (used == 0 && !make_room(c, need))
                return false;
            break;
        }
        c->runs_at = used + DDSTORE__FRAME_BYTES;
        if (!serve(s, c, &f, c->in + c->runs_at, (size_t)body) || !push(s, c))
            return false;
        if (c->busy) {
            c->consumed = used + need; /* its runs are still read from the input */
            return true;
        }
        used += need;
    }
    memmove(c->in, c->in + used, c->have - used);
    c->have -= used;
    return true;
}

static bool receive(ddstore__server *s, ddstore__conn *c)
{
    ssize_t got = recv(c->fd, c->in + c->have, c->room - c->have, 0);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (got == 0)
        return false;
    c->have += (size_t)got;
    if (!serve_input(s, c))
        return false;
    if (c->have == 0 && c->room > KEPT_ROOM) {
        free(c->in);
        c->room = FIRST_ROOM;
        c->in = malloc(FIRST_ROOM);
    }
    return c->in != NULL;
}

/* An answer that had to wait goes on; behind it the next requests of the input. */
static bool go_on(ddstore__server *s, ddstore__conn *c)
{
    if (!push(s, c))
        return false;
    if (c->busy)
        return true;
    memmove(c->in, c->in + c->consumed, c->have - c->consumed);
    c->have -= c->consumed;
    c->consumed = 0;
    return serve_input(s, c);
}

void ddstore__server_event(ddstore__server *s, void *conn, uint32_t events)
{
    ddstore__conn *c = conn;
    if (c->fd < 0)
        return;
    bool alive = c->busy ? (events & EPOLLOUT) && go_on(s, c) : receive(s, c);
    if (!alive)
        drop(s, c);
    else if (c->busy)
        c->since = ddstore__now_ns();
}

int ddstore__server_sweep(ddstore__server *s)
{
    free_dropped(s);
    if (!s->strangers && !s->busy)
        return -1;
    int64_t now = ddstore__now_ns();
    if (now < s->next_sweep)
        return (int)((s->next_sweep - now) / DDSTORE__MS) + 1;
    s->next_sweep = now + DDSTORE__S;
    for (ddstore__conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        int64_t limit = c->state != CONN_OPEN ? PROOF_S * DDSTORE__S : s->stall_ns;
        if ((c->state != CONN_OPEN || c->busy) && now - c->since > limit)
            drop(s, c);
    }
    return 1000;
}

void ddstore__server_tell_closing(ddstore__server *s)
{
    uint8_t frame[DDSTORE__FRAME_BYTES];
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__CLOSING}, frame);
    for (ddstore__conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (!c->run || !atomic_load(&c->run->closing) || c->busy)
            continue;
        (void)!send(c->fd, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
        drop(s, c);
    }
}

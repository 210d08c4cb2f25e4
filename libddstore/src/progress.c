/* The progress thread: its loop, its listening sockets and its wake event. */
#include "progress.h"

#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define PARK_MS 1000 /* a fork goes ahead then: no event takes that long */

/* The low bits of an event's word say what it is; a connection's address has them zero.
 */
enum { TAG_CONN = 0, TAG_LISTENER = 1, TAG_WAKE = 2, TAG_PIDFD = 3, TAG_MASK = 3 };

static struct {
    pthread_t thread;
    atomic_bool running;
    int epoll;
    atomic_int wake; /* cleared under lock before it is closed */
    int listeners[DDSTORE__ADDRESSES];
    size_t n_listeners;
    ddstore__server *server;
    atomic_int stop;
    pthread_mutex_t lock; /* told, parked, ended; forks is only raised under it */
    pthread_cond_t done;
    pthread_cond_t go;
    atomic_int forks; /* under way: the thread stands still */
    bool parked, ended;
    atomic_ullong asked; /* rounds of telling the channels of closing runs */
    uint64_t told;       /* written under lock */
} p = {.epoll = -1,
       .wake = -1,
       .lock = PTHREAD_MUTEX_INITIALIZER,
       .done = PTHREAD_COND_INITIALIZER,
       .go = PTHREAD_COND_INITIALIZER};

bool ddstore__progress_wake(void)
{
    int wake = atomic_load(&p.wake);
    return wake >= 0 && write(wake, &(uint64_t){1}, sizeof(uint64_t)) > 0;
}

/* Tells the channels of closing runs. Only between batches of events: it drops
 * connections, of which events may still be under way. */
static void tell_closing(void)
{
    uint64_t asked = atomic_load(&p.asked);
    if (asked == p.told) /* written by this thread alone */
        return;
    ddstore__server_tell_closing(p.server);
    pthread_mutex_lock(&p.lock);
    p.told = asked;
    pthread_cond_broadcast(&p.done);
    pthread_mutex_unlock(&p.lock);
}

static void handle(const struct epoll_event *event)
{
    uint64_t word = event->data.u64;
    switch (word & TAG_MASK) {
    case TAG_CONN:
        ddstore__server_event(p.server, event->data.ptr, event->events);
        break;
    case TAG_LISTENER:
        ddstore__server_accept(p.server, p.listeners[word >> 2]);
        break;
    case TAG_WAKE:
        (void)!read(p.wake, &(uint64_t){0}, sizeof(uint64_t));
        break;
    default:
        ddstore__peer_died(word >> 2);
    }
}

/* Between events, holding no lock: stands still while the process is being forked. */
static void park(void)
{
    if (!atomic_load(&p.forks))
        return;
    pthread_mutex_lock(&p.lock);
    p.parked = true;
    pthread_cond_broadcast(&p.done);
    while (atomic_load(&p.forks))
        pthread_cond_wait(&p.go, &p.lock);
    p.parked = false;
    pthread_mutex_unlock(&p.lock);
}

static void *loop(void *unused)
{
    (void)unused;
    struct epoll_event events[64];
    int timeout = -1;
    while (!atomic_load(&p.stop)) {
        int n = epoll_wait(p.epoll, events, DDSTORE__COUNT(events), timeout);
        for (int i = 0; i < n; i++) {
            park();
            handle(&events[i]);
        }
        park();
        tell_closing();
        ddstore__sigterm_work(p.server);
        timeout = ddstore__server_sweep(p.server);
        park();
    }
    pthread_mutex_lock(&p.lock);
    p.ended = true;
    pthread_cond_broadcast(&p.done);
    pthread_mutex_unlock(&p.lock);
    return NULL;
}

static int watch(int fd, uint64_t word)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = word};
    return epoll_ctl(p.epoll, EPOLL_CTL_ADD, fd, &event);
}

int ddstore__progress_watch(int pidfd, uint64_t tag)
{
    return watch(pidfd, tag << 2 | TAG_PIDFD);
}

void ddstore__progress_unwatch(int pidfd)
{
    (void)epoll_ctl(p.epoll, EPOLL_CTL_DEL, pidfd, NULL);
}

static socklen_t to_sockaddr(const ddstore__address *a, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (a->family == 4) {
        struct sockaddr_in *in = (void *)out;
        in->sin_family = AF_INET;
        in->sin_port = htons(a->port);
        memcpy(&in->sin_addr, a->ip, 4);
        return sizeof(*in);
    }
    struct sockaddr_in6 *in6 = (void *)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(a->port);
    in6->sin6_scope_id = a->scope;
    memcpy(&in6->sin6_addr, a->ip, 16);
    return sizeof(*in6);
}

/* A listening socket on the address, whose port is filled in; -1 with errno. */
static int listen_on(ddstore__address *a)
{
    struct sockaddr_storage sa;
    socklen_t bytes = to_sockaddr(a, &sa);
    ddstore__fd_begin();
    int fd = ddstore__fd_end(
        socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&sa, bytes) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &bytes) != 0) {
        int saved = errno;
        ddstore__fd_close(fd);
        errno = saved;
        return -1;
    }
    a->port = ntohs(a->family == 4 ? ((struct sockaddr_in *)(void *)&sa)->sin_port
                                   : ((struct sockaddr_in6 *)(void *)&sa)->sin6_port);
    return fd;
}

/* Listens on what it can; an address that fails is struck out, unless all do. */
static int listen_all(ddstore__address *addresses, size_t n, ddstore_error *err)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        int fd = listen_on(&addresses[i]);
        if (fd < 0) {
            failed = errno;
            addresses[i].family = 0;
            continue;
        }
        p.listeners[p.n_listeners] = fd;
        if (watch(fd, p.n_listeners++ << 2 | TAG_LISTENER) != 0)
            return ddstore__fail_errno(err, errno,
                                       "a listening socket can't be watched");
    }
    if (!p.n_listeners)
        return ddstore__fail_errno(err, failed,
                                   "no address of this host can be listened on");
    return DDSTORE_OK;
}

static int start_thread(ddstore_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p.thread, NULL, loop, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return ddstore__fail_errno(err, failed, "the progress thread can't be started");
    pthread_setname_np(p.thread, "ddstore");
    atomic_store(&p.running, true);
    return DDSTORE_OK;
}

int ddstore__progress_start(const uint8_t uid[16], ddstore__address *addresses,
                            size_t n, double stall_s, ddstore_error *err)
{
    atomic_store(&p.stop, 0);
    pthread_mutex_lock(&p.lock);
    p.ended = false;
    pthread_mutex_unlock(&p.lock);
    p.n_listeners = 0;
    ddstore__fd_begin();
    p.epoll = ddstore__fd_end(epoll_create1(EPOLL_CLOEXEC));
    ddstore__fd_begin();
    p.wake = ddstore__fd_end(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int rc = DDSTORE_OK;
    if (p.epoll < 0 || p.wake < 0 || watch(p.wake, TAG_WAKE) != 0)
        rc = ddstore__fail_errno(err, errno,
                                 "the progress thread's events can't be made");
    if (!rc && !(p.server = ddstore__server_open(p.epoll, uid, stall_s)))
        rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory for the progress thread");
    if (!rc)
        rc = listen_all(addresses, n, err);
    if (!rc)
        rc = start_thread(err);
    if (rc)
        ddstore__progress_stop();
    return rc;
}

void ddstore__progress_stop(void)
{
    if (atomic_load(&p.running)) {
        atomic_store(&p.stop, 1);
        (void)ddstore__progress_wake();
        pthread_join(p.thread, NULL);
        atomic_store(&p.running, false);
    }
    ddstore__server_close(p.server);
    p.server = NULL;
    for (size_t i = 0; i < p.n_listeners; i++)
        ddstore__fd_close(p.listeners[i]);
    p.n_listeners = 0;
    pthread_mutex_lock(&p.lock); /* a fork in another thread may be about to use it */
    int wake = atomic_exchange(&p.wake, -1);
    pthread_mutex_unlock(&p.lock);
    ddstore__fd_close(wake);
    ddstore__fd_close(p.epoll);
    p.epoll = -1;
}

static struct timespec after_ms(int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ms * DDSTORE__MS;
    until.tv_sec += until.tv_nsec / DDSTORE__S;
    until.tv_nsec %= DDSTORE__S;
    return until;
}

void ddstore__progress_tell_closing(void)
{
    if (!atomic_load(&p.running))
        return;
    struct timespec until = after_ms(200);
    pthread_mutex_lock(&p.lock);
    uint64_t mine = atomic_fetch_add(&p.asked, 1) + 1;
    (void)ddstore__progress_wake();
    while (p.told < mine && pthread_cond_timedwait(&p.done, &p.lock, &until) == 0)
        ;
    pthread_mutex_unlock(&p.lock);
}

void ddstore__progress_fork_prepare(void)
{
    struct timespec until = after_ms(PARK_MS);
    pthread_mutex_lock(&p.lock);
    atomic_fetch_add(&p.forks, 1);
    if (atomic_load(&p.running)) {
        (void)ddstore__progress_wake();
        while (!p.parked && !p.ended &&
               pthread_cond_timedwait(&p.done, &p.lock, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&p.lock);
}

void ddstore__progress_fork_parent(void)
{
    pthread_mutex_lock(&p.lock);
    if (atomic_fetch_sub(&p.forks, 1) == 1)
        pthread_cond_broadcast(&p.go);
    pthread_mutex_unlock(&p.lock);
}

void ddstore__progress_child(void)
{
    atomic_store(&p.running, false);
    atomic_store(&p.forks, 0);
    p.parked = p.ended = false;
    p.server = NULL;
    p.n_listeners = 0;
    p.epoll = -1;
    atomic_store(&p.wake, -1);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.done, NULL);
    pthread_cond_init(&p.go, NULL);
}

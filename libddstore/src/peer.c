/* Peers: the table, and finding by trying whether one is on this host. */
#include "peer.h"

#include "channel.h"
#include "progress.h"
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* peers, refs, last_tag */
static ddstore__peer *peers;
static uint64_t last_tag;

static bool ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

int ddstore__peer_map(const ddstore__peer *peer, uint32_t fd, uint64_t bytes,
                      const uint8_t token[16], void **map, char *why, size_t why_bytes)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%u/fd/%u", peer->contact.process.pid, fd);
    ddstore__fd_begin();
    int own = ddstore__fd_end(open(path, O_RDONLY | O_CLOEXEC));
    if (own < 0) {
        snprintf(why, why_bytes, "its memory can't be opened (%s)", strerror(errno));
        return -1;
    }
    void *at = MAP_FAILED;
    if (fstat(own, &st) == 0 && (uint64_t)st.st_size >= bytes)
        at = ddstore__segment_map(own, bytes, PROT_READ);
    ddstore__fd_close(own); /* a child that inherited it would keep the memory */
    if (at == MAP_FAILED) {
        snprintf(why, why_bytes, "its memory can't be mapped");
        return -1;
    }
    if (!ddstore__same16(at, token) || ended(peer->pidfd)) {
        munmap(at, bytes);
        snprintf(why, why_bytes, "what was mapped isn't its memory");
        return -1;
    }
    *map = at;
    return 0;
}

/* Opens the pidfd of a process of this host and looks whether it still is that one. */
static void find_on_host(ddstore__peer *peer, const ddstore__process *here)
{
    const ddstore__process *there = &peer->contact.process;
    if (memcmp(there->boot_id, here->boot_id, 16) != 0) {
        snprintf(peer->why, sizeof(peer->why), "it is on another host");
        return;
    }
    if (there->pid_ns != here->pid_ns) {
        snprintf(peer->why, sizeof(peer->why), "it is in another PID namespace");
        return;
    }
    ddstore__fd_begin();
    peer->pidfd = ddstore__fd_end((int)syscall(SYS_pidfd_open, (pid_t)there->pid, 0));
    if (peer->pidfd < 0 && errno != ESRCH) {
        snprintf(peer->why, sizeof(peer->why), "it can't be watched (pidfd_open: %s)",
                 strerror(errno));
        return;
    }
    if (peer->pidfd < 0 || ddstore__process_alive(there) == 0 || ended(peer->pidfd)) {
        peer->lost_why = "its process ended";
        peer->lost = 1;
        return;
    }
    (void)fcntl(peer->pidfd, F_SETFD, FD_CLOEXEC);
    peer->same_host = true;
}

static void try_beacon(ddstore__peer *peer)
{
    void *map;
    if (ddstore__peer_map(peer, peer->contact.beacon_fd, DDSTORE__HEAD_BYTES,
                          peer->contact.beacon_token, &map, peer->why,
                          sizeof(peer->why)) != 0)
        return;
    munmap(map, DDSTORE__HEAD_BYTES);
    snprintf(peer->why, sizeof(peer->why),
             "it is on this host and its memory was mapped");
    peer->mappable = true;
}

static ddstore__peer *make(const ddstore__contact *contact, const uint8_t self[16])
{
    ddstore__peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return NULL;
    ddstore__process here;
    ddstore__process_self(&here);
    peer->contact = *contact;
    peer->pidfd = -1;
    peer->refs = 1;
    peer->tag = ++last_tag;
    pthread_mutex_init(&peer->lock, NULL);
    if (ddstore__same16(contact->uid, self)) {
        peer->self = peer->mappable = true;
        snprintf(peer->why, sizeof(peer->why), "it is this process");
        return peer;
    }
    find_on_host(peer, &here);
    if (peer->same_host)
        try_beacon(peer);
    return peer;
}

ddstore__peer *ddstore__peer_get(const ddstore__contact *contact,
                                 const uint8_t self[16])
{
    pthread_mutex_lock(&lock);
    ddstore__peer *peer = peers;
    while (peer && !ddstore__same16(peer->contact.uid, contact->uid))
        peer = peer->next;
    bool fresh = !peer;
    if (peer) {
        peer->refs++;
    } else if ((peer = make(contact, self))) {
        peer->next = peers;
        peers = peer;
    }
    pthread_mutex_unlock(&lock);
    /* Watched only once it is in the table: its death may come at once. */
    if (fresh && peer && peer->same_host)
        (void)ddstore__progress_watch(peer->pidfd, peer->tag);
    return peer;
}

void ddstore__peer_put(ddstore__peer *peer)
{
    if (!peer)
        return;
    pthread_mutex_lock(&lock);
    bool last = --peer->refs == 0;
    for (ddstore__peer **at = &peers; last && *at; at = &(*at)->next)
        if (*at == peer) {
            *at = peer->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    ddstore__channel_close_all(peer);
    ddstore__fd_close(peer->pidfd);
    if (peer->ofi)
        ddstore__ofi_peer_close(peer->ofi);
    pthread_mutex_destroy(&peer->lock);
    free(peer);
}

void ddstore__peer_lose(ddstore__peer *peer, const char *why)
{
    const char *none = NULL;
    atomic_compare_exchange_strong(&peer->lost_why, &none, why);
    atomic_store(&peer->lost, 1);
    ddstore__channel_shut_all(peer);
}

void ddstore__peer_died(uint64_t tag)
{
    pthread_mutex_lock(&lock);
    ddstore__peer *peer = peers;
    while (peer && peer->tag != tag)
        peer = peer->next;
    if (peer) {
        ddstore__log_later(DDSTORE_LOG_INFO, "process %u on %s ended",
                           peer->contact.process.pid, peer->contact.process.host);
        ddstore__progress_unwatch(peer->pidfd);
        ddstore__peer_lose(peer, "its process ended");
    }
    pthread_mutex_unlock(&lock);
}

void ddstore__peer_tell_lost(ddstore__peer *peer, ddstore_error *err)
{
    const char *why = atomic_load(&peer->lost_why);
    ddstore__fill(err, DDSTORE_EPEER, "process %u on host %s is lost: %s",
                  peer->contact.process.pid, peer->contact.process.host,
                  why ? why : "it does not answer");
}

void ddstore__peer_child(void)
{
    pthread_mutex_init(&lock, NULL);
    peers = NULL;
}

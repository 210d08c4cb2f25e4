/* The library's own descriptors, so that a forked child can close exactly them. A child
 * needs no lock to read the table; the parent's lock is for a fork to wait until no
 * descriptor is made or closed: one that isn't noted would be inherited. */
#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define TRACKED (1u << 20) /* larger ones are CLOEXEC only */

static atomic_ullong owned[TRACKED / 64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* against forks only */

int ddstore__fd_own(int fd)
{
    if (fd >= 0 && (unsigned)fd < TRACKED)
        atomic_fetch_or(&owned[fd / 64], 1ULL << (fd % 64));
    return fd;
}

void ddstore__fd_begin(void)
{
    pthread_mutex_lock(&lock);
}

int ddstore__fd_end(int fd)
{
    int saved = errno;
    (void)ddstore__fd_own(fd);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return fd;
}

void ddstore__fd_close_file(int fd)
{
    if (fd < 0)
        return;
    unsigned long long bit = 1ULL << (fd % 64);
    if ((unsigned)fd < TRACKED && !(atomic_fetch_and(&owned[fd / 64], ~bit) & bit))
        return; /* of the parent: in this child the number may be anybody's */
    close(fd);
}

void ddstore__fd_close(int fd)
{
    ddstore__fd_begin();
    ddstore__fd_close_file(fd);
    (void)ddstore__fd_end(-1);
}

bool ddstore__fd_fork_prepare(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1; /* its holder may be what a signal's handler has interrupted */
    return pthread_mutex_timedlock(&lock, &until) == 0;
}

void ddstore__fd_fork_parent(bool prepared)
{
    if (prepared)
        pthread_mutex_unlock(&lock);
}

void ddstore__fd_fork_child(bool prepared)
{
    if (prepared) /* by this thread */
        pthread_mutex_unlock(&lock);
    else
        pthread_mutex_init(&lock, NULL);
    ddstore__fd_close_all_in_child();
}

void ddstore__fd_close_all_in_child(void)
{
    for (unsigned i = 0; i < TRACKED / 64; i++) {
        unsigned long long bits = atomic_exchange(&owned[i], 0);
        for (; bits; bits &= bits - 1)
            close((int)(i * 64) + __builtin_ctzll(bits));
    }
}

/* The library's own descriptors, so that a forked child can close exactly them. A set
 * bit in a fixed table needs no lock, which a child of a threaded process could find
 * held. */
#include "base.h"

#include <unistd.h>

#define TRACKED (1u << 20) /* larger ones are CLOEXEC only */

static atomic_ullong owned[TRACKED / 64];

int ddstore__fd_own(int fd)
{
    if (fd >= 0 && (unsigned)fd < TRACKED)
        atomic_fetch_or(&owned[fd / 64], 1ULL << (fd % 64));
    return fd;
}

void ddstore__fd_close(int fd)
{
    if (fd < 0)
        return;
    if ((unsigned)fd < TRACKED)
        atomic_fetch_and(&owned[fd / 64], ~(1ULL << (fd % 64)));
    close(fd);
}

void ddstore__fd_close_all_in_child(void)
{
    for (unsigned i = 0; i < TRACKED / 64; i++) {
        unsigned long long bits = atomic_exchange(&owned[i], 0);
        for (; bits; bits &= bits - 1)
            close((int)(i * 64) + __builtin_ctzll(bits));
    }
}

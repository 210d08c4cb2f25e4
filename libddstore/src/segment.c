/* Segments: memory committed, sealed and entered in this process's table. */
#include "segment.h"

#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define PIECE (64ULL << 20) /* committed at a time, memory checked before each */
#define HUGE  (2ULL << 20)  /* mappings of that size are aligned to it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* table, room */
static ddstore__segment *
    *table; /* slot = id modulo 2^20; the rest of an id is random */
static size_t room;
#define SLOT_BITS 20

static int enter(ddstore__segment *seg, ddstore_error *err)
{
    int rc = DDSTORE_OK;
    pthread_mutex_lock(&lock);
    size_t slot = 0;
    while (slot < room && table[slot])
        slot++;
    if (slot == room) {
        size_t more = room ? room * 2 : 64;
        ddstore__segment **bigger =
            more <= 1u << SLOT_BITS ? realloc(table, more * sizeof(*table)) : NULL;
        if (bigger) {
            memset(bigger + room, 0, (more - room) * sizeof(*bigger));
            table = bigger;
            room = more;
        } else {
            rc = ddstore__fail(err, DDSTORE_ENOMEM, "no room for one more segment");
        }
    }
    if (!rc) {
        seg->id = ddstore__random_u64() << SLOT_BITS | slot;
        table[slot] = seg;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

ddstore__segment *ddstore__segment_find(uint64_t id, const uint8_t run[16])
{
    size_t slot = id & ((1u << SLOT_BITS) - 1);
    ddstore__segment *found = NULL;
    pthread_mutex_lock(&lock);
    if (slot < room && table[slot] && table[slot]->id == id &&
        ddstore__same16(table[slot]->run, run)) {
        found = table[slot];
        ddstore__segment_ref(found);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void ddstore__segment_unref(ddstore__segment *seg)
{
    if (atomic_fetch_sub(&seg->refs, 1) != 1)
        return;
    if (seg->map)
        munmap(seg->map, seg->map_bytes);
    ddstore__fd_close(seg->fd);
    free(seg);
}

void *ddstore__segment_map(int fd, uint64_t bytes, int prot)
{
    if (bytes < HUGE)
        return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
    uint8_t *whole =
        mmap(NULL, bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED)
        return MAP_FAILED;
    uint8_t *at = (uint8_t *)(((uintptr_t)whole + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    void *map = mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
    if (map == MAP_FAILED) {
        munmap(whole, bytes + HUGE);
        return MAP_FAILED;
    }
    if (at > whole)
        munmap(whole, (size_t)(at - whole));
    uint8_t *end = at + ((bytes + 4095) & ~4095ULL);
    if (end < whole + bytes + HUGE)
        munmap(end, (size_t)(whole + bytes + HUGE - end));
    return map;
}

/* Commits one piece through its mapping, where huge pages are to be had, else by the
 * file alone. An errno. */
static int commit_piece(const ddstore__segment *seg, uint64_t at, uint64_t bytes)
{
    int failed;
    if (seg->map_bytes >= HUGE) {
        while (madvise(seg->map + at, bytes, MADV_POPULATE_WRITE) != 0)
            if (errno != EINTR && errno != EAGAIN)
                goto by_file; /* an old kernel, or too little memory: that one tells */
        return 0;
    }
by_file:
    while ((failed = posix_fallocate(seg->fd, (off_t)at, (off_t)bytes)) == EINTR)
        ;
    return failed;
}

static int commit(const ddstore__segment *seg, const char *what, ddstore_error *err)
{
    for (uint64_t done = 0; done < seg->map_bytes;) {
        uint64_t piece = seg->map_bytes - done < PIECE ? seg->map_bytes - done : PIECE;
        int rc = ddstore__memory_check(piece, what, err);
        if (rc)
            return rc;
        int failed = commit_piece(seg, done, piece);
        if (failed == ENOSPC || failed == ENOMEM)
            return ddstore__fail(err, DDSTORE_ENOMEM,
                                 "%s needs %.1f MiB of memory and the kernel gave only "
                                 "%.1f MiB",
                                 what, (double)seg->map_bytes / 1048576,
                                 (double)done / 1048576);
        if (failed)
            return ddstore__fail_errno(err, failed, "memory of %s can't be committed",
                                       what);
        done += piece;
    }
    return DDSTORE_OK;
}

static int make(ddstore__segment *seg, const char *what, ddstore_error *err)
{
    ddstore__fd_begin();
    seg->fd = ddstore__fd_end((int)syscall(SYS_memfd_create, "ddstore",
                                           3u /* MFD_CLOEXEC | ALLOW_SEALING */));
    if (seg->fd < 0)
        return ddstore__fail_errno(err, errno, "no shared memory for %s (memfd_create)",
                                   what);
    if (ftruncate(seg->fd, (off_t)seg->map_bytes) != 0)
        return ddstore__fail_errno(err, errno, "shared memory of %s can't be sized",
                                   what);
    void *map = ddstore__segment_map(seg->fd, seg->map_bytes, PROT_READ | PROT_WRITE);
    if (map == MAP_FAILED)
        return ddstore__fail_errno(err, errno, "shared memory of %s can't be mapped",
                                   what);
    seg->map = map;
    if (seg->map_bytes >= HUGE)
        (void)madvise(map, seg->map_bytes, MADV_HUGEPAGE);
    int rc = commit(seg, what, err);
    if (rc)
        return rc;
    (void)fcntl(seg->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ddstore__random(seg->token, sizeof(seg->token));
    memcpy(seg->map, seg->token, sizeof(seg->token));
    return DDSTORE_OK;
}

int ddstore__segment_create(const uint8_t run[16], uint64_t bytes, const char *what,
                            ddstore__segment **out, ddstore_error *err)
{
    int rc = ddstore__memory_check(bytes, what, err);
    if (rc)
        return rc;
    ddstore__segment *seg = calloc(1, sizeof(*seg));
    if (!seg)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a segment");
    seg->bytes = bytes;
    seg->map_bytes = (DDSTORE__HEAD_BYTES + bytes + 4095) & ~4095ULL;
    seg->fd = -1;
    atomic_init(&seg->refs, 1);
    memcpy(seg->run, run, sizeof(seg->run));
    rc = make(seg, what, err);
    if (!rc)
        rc = enter(seg, err);
    if (rc) {
        ddstore__segment_unref(seg);
        return rc;
    }
    *out = seg;
    return DDSTORE_OK;
}

int ddstore__segment_expose(ddstore__segment *seg, ddstore__ofi *ofi,
                            ddstore_error *err)
{
    if (!ofi)
        return DDSTORE_OK;
    return ddstore__ofi_expose(ofi, seg->map, seg->map_bytes, &seg->ofi_base,
                               &seg->ofi_key, &seg->mr, err);
}

void ddstore__segment_describe(const ddstore__segment *seg, const uint8_t owner[16],
                               ddstore__descriptor *out)
{
    *out = (ddstore__descriptor){
        .id = seg->id,
        .bytes = seg->bytes,
        .fd = (uint32_t)seg->fd,
        .ofi_base = seg->ofi_base,
        .ofi_key = seg->ofi_key,
    };
    memcpy(out->token, seg->token, sizeof(out->token));
    memcpy(out->owner, owner, sizeof(out->owner));
    /* Whoever finds the segment after it was told of finds what was written until now.
     */
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

static void mark_closing(ddstore__segment *seg)
{
    atomic_store(&((ddstore__head *)(void *)seg->map)->closing, 1);
}

void ddstore__segment_withdraw(ddstore__segment *seg)
{
    if (!seg)
        return;
    mark_closing(seg);
    pthread_mutex_lock(&lock);
    table[seg->id & ((1u << SLOT_BITS) - 1)] = NULL;
    pthread_mutex_unlock(&lock);
    ddstore__ofi_release(seg->mr);
    seg->mr = NULL;
    int fd = seg->fd;
    seg->fd = -1;
    ddstore__fd_close(fd);
    ddstore__segment_unref(seg);
}

void ddstore__segment_close_all(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < room; i++)
        if (table[i])
            mark_closing(table[i]);
    pthread_mutex_unlock(&lock);
}

void ddstore__segment_child(void)
{
    pthread_mutex_init(&lock, NULL);
    table = NULL;
    room = 0;
}

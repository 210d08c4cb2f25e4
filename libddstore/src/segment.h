/*
 * Segments: page-aligned memory that this process exposes to others. A segment is a
 * sealed memfd: a head page with a random token, which whoever maps or reads it checks,
 * then the data. Counted: the table, requests being served and views each hold a
 * reference.
 */
#ifndef DDSTORE_SEGMENT_H
#define DDSTORE_SEGMENT_H

#include "transport/ofi.h"
#include "wire.h"

#define DDSTORE__HEAD_BYTES 4096

/* What stands at the start of every segment, in shared memory. */
typedef struct ddstore__head {
    uint8_t token[16];
    atomic_int closing; /* the owner freed it: readers by mapping look here */
} ddstore__head;

typedef struct ddstore__segment {
    uint64_t id, bytes, map_bytes;
    uint8_t *map; /* the head, then `bytes` bytes of data */
    int fd;       /* -1 once withdrawn */
    uint8_t token[16], run[16];
    atomic_int refs;
    ddstore__ofi_mr *mr;
    uint64_t ofi_base, ofi_key;
} ddstore__segment;

/* Commits zeroed memory (DDSTORE_ENOMEM with figures where there isn't enough) and
 * enters it in this process's table under the run. `what` names it in errors. Ends by
 * ddstore__segment_withdraw. */
int ddstore__segment_create(const uint8_t run[16], uint64_t bytes, const char *what,
                            ddstore__segment **out, ddstore_error *err);

/* Lets peers read it by libfabric too; ofi NULL does nothing. */
int ddstore__segment_expose(ddstore__segment *seg, ddstore__ofi *ofi,
                            ddstore_error *err);

static inline uint8_t *ddstore__segment_data(const ddstore__segment *seg)
{
    return seg->map + DDSTORE__HEAD_BYTES;
}

void ddstore__segment_describe(const ddstore__segment *seg, const uint8_t owner[16],
                               ddstore__descriptor *out);

/* Marks it as closing to those who map it, takes it out of the table and drops the
 * table's reference. NULL does nothing. */
void ddstore__segment_withdraw(ddstore__segment *seg);

/* The segment of that id if it belongs to the run, with a reference; else NULL. */
ddstore__segment *ddstore__segment_find(uint64_t id, const uint8_t run[16]);
void ddstore__segment_unref(ddstore__segment *seg);
static inline void ddstore__segment_ref(ddstore__segment *seg)
{
    atomic_fetch_add(&seg->refs, 1);
}

/* Maps a segment's memfd, large ones where the kernel can use huge pages. As mmap(). */
void *ddstore__segment_map(int fd, uint64_t bytes, int prot);

/* Marks all as closing: the process is about to end. */
void ddstore__segment_close_all(void);
void ddstore__segment_child(void); /* after fork: forget */

#endif

/* Ground for every file: error filling, time, randomness, hashing, little-endian words.
 */
#ifndef DDSTORE_BASE_H
#define DDSTORE_BASE_H

#include "ddstore.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DDSTORE__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define DDSTORE__COUNT(a)     (sizeof(a) / sizeof((a)[0]))
#define DDSTORE__NONCE        16 /* bytes of a nonce, token, secret or identity */

/* -- error.c -- */

void ddstore__fill(ddstore_error *err, int code, const char *format, ...)
    DDSTORE__PRINTF(3, 4);

/* Fills err (nullable) and is code. A macro, so that readers and tools see which. */
#define ddstore__fail(err, code, ...)                                                  \
    (ddstore__fill((err), (code), __VA_ARGS__), ddstore__code(code))
static inline int ddstore__code(int code)
{
    return code;
}

/* The same with ": " and the text of errno appended; DDSTORE_ESYS, or DDSTORE_ENOMEM
 * for ENOMEM. */
int ddstore__fill_errno(ddstore_error *err, int errnum, const char *format, ...)
    DDSTORE__PRINTF(3, 4);
#define ddstore__fail_errno(err, errnum, ...)                                          \
    (ddstore__fill_errno((err), (errnum), __VA_ARGS__) == DDSTORE_ENOMEM               \
         ? DDSTORE_ENOMEM                                                              \
         : DDSTORE_ESYS)

/* Puts "prefix: " before the message of err (nullable), whose code becomes that one. */
void ddstore__prefix(ddstore_error *err, int code, const char *format, ...)
    DDSTORE__PRINTF(3, 4);
#define ddstore__wrap(err, code, ...)                                                  \
    (ddstore__prefix((err), (code), __VA_ARGS__), ddstore__code(code))

/* -- log.c -- */

/* From any thread but the progress thread; calls the host's logger. */
void ddstore__log(int level, const char *format, ...) DDSTORE__PRINTF(2, 3);

/* From the progress thread: appends to a bounded queue, never blocks. */
void ddstore__log_later(int level, const char *format, ...) DDSTORE__PRINTF(2, 3);

void ddstore__log_child(void); /* after fork: another thread may have held a lock */

/* -- clock.c -- */

#define DDSTORE__MS      1000000LL
#define DDSTORE__S       1000000000LL
#define DDSTORE__FOREVER INT64_MAX

int64_t ddstore__now_ns(void);            /* CLOCK_MONOTONIC */
int64_t ddstore__after_s(double seconds); /* now + seconds, saturating */
void ddstore__sleep_ns(int64_t ns);       /* returns early on a signal */

/* A wait with a deadline, a close flag and the host's interrupt check: what every
 * waiting loop of the library asks. */
typedef struct ddstore__wait {
    int64_t deadline_ns;
    const atomic_int *closed; /* nullable; non-zero ends the wait */
} ddstore__wait;

/* 0: go on waiting; DDSTORE_ECLOSED, DDSTORE_EINTR (both say so in err) or
 * DDSTORE_ETIMEDOUT (err untouched: the caller knows what it waited for). Calls the
 * host's interrupt check, so call it at least every 100 ms of a wait and after EINTR.
 */
int ddstore__wait_check(const ddstore__wait *wait, ddstore_error *err);

/* Waiting for what must be looked at to be made progress: between two looks, at first
 * nothing, then the processor is given away, then a sleep of up to 1 ms. */
typedef struct ddstore__pauses {
    ddstore__wait wait;
    int64_t begun_ns, next_check_ns, sleep_ns;
} ddstore__pauses;

void ddstore__pause_begin(ddstore__pauses *p, int64_t timeout_ns,
                          const atomic_int *closed);
/* As ddstore__wait_check, which it calls every 20 ms. */
int ddstore__pause(ddstore__pauses *p, ddstore_error *err);

void ddstore__clock_child(void); /* after fork: another thread may have held a lock */

/* -- random.c -- */

void ddstore__random(void *out, size_t bytes); /* getrandom(2); never fails, may wait */
uint64_t ddstore__random_u64(void);

/* -- hash.c -- */

uint64_t ddstore__hash64(const void *data, size_t bytes); /* XXH64, seed 0 */
void ddstore__hash128(const void *data, size_t bytes, uint8_t out[16]); /* XXH3-128 */

/* SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012). */
void ddstore__siphash128(const uint8_t key[16], const void *data, size_t bytes,
                         uint8_t out[16]);
bool ddstore__same16(const uint8_t a[16], const uint8_t b[16]); /* constant time */
void ddstore__hex16(const uint8_t in[16], char out[33]);

/* -- fd.c: descriptors that belong to this library -- */

/* Notes fd (>= 0) as the library's own, so that a forked child closes it. Returns fd.
 */
int ddstore__fd_own(int fd);
void ddstore__fd_close(int fd); /* ignores -1 */

/* The same around a fork that comes at the same time: what is made between begin and
 * end (which notes it, and keeps errno) is in no child that has not closed it. For what
 * a child must not hold open: sockets, memory, pidfds. Nothing that may wait stands
 * between them. */
void ddstore__fd_begin(void);
int ddstore__fd_end(int fd);

/* Of a file or directory, whose closing may wait for a server. Ignores -1. */
void ddstore__fd_close_file(int fd);

void ddstore__fd_close_all_in_child(void);

/* Around a fork. false: not waited for any longer. The child closes all. */
bool ddstore__fd_fork_prepare(void);
void ddstore__fd_fork_parent(bool prepared);
void ddstore__fd_fork_child(bool prepared);

/* -- little-endian words, any alignment -- */

static inline void ddstore__put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v, p[1] = (uint8_t)(v >> 8);
}
static inline void ddstore__put32(uint8_t *p, uint32_t v)
{
    ddstore__put16(p, (uint16_t)v), ddstore__put16(p + 2, (uint16_t)(v >> 16));
}
static inline void ddstore__put64(uint8_t *p, uint64_t v)
{
    ddstore__put32(p, (uint32_t)v), ddstore__put32(p + 4, (uint32_t)(v >> 32));
}
static inline uint16_t ddstore__get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t ddstore__get32(const uint8_t *p)
{
    return (uint32_t)ddstore__get16(p) | (uint32_t)ddstore__get16(p + 2) << 16;
}
static inline uint64_t ddstore__get64(const uint8_t *p)
{
    return (uint64_t)ddstore__get32(p) | (uint64_t)ddstore__get32(p + 4) << 32;
}

/* -- process.c: who this process is, to others on this host and elsewhere -- */

typedef struct ddstore__process {
    uint8_t boot_id[16]; /* of the kernel */
    uint64_t pid_ns;     /* inode of the PID namespace */
    uint64_t net_ns;     /* inode of the network namespace */
    uint64_t start_time; /* clock ticks since boot, /proc/PID/stat field 22 */
    uint32_t pid;
    char host[64]; /* for messages only, never for decisions */
} ddstore__process;

void ddstore__process_self(ddstore__process *out);

/* 1: that process lives; 0: it is gone (or its pid belongs to another now); -1: can't
 * be told from here (another host or PID namespace). */
int ddstore__process_alive(const ddstore__process *p);

/* Raised by one in each forked child: an object that noted another value is inherited.
 */
extern unsigned ddstore__fork_generation;

#endif

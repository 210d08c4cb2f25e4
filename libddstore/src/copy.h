/*
 * Copying pieces that lie far apart. Rows of a shuffled batch are in no cache and
 * behind pages that the processor has not looked up lately: a loop of memcpy waits for
 * each of them. Here the second-level cache is asked for what comes next, across rows,
 * well before it is copied. Measured on rows of 3 KB in 768 MB: 0.62 of the loop's
 * time.
 */
#ifndef DDSTORE_COPY_H
#define DDSTORE_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

/* Bytes that are asked for before they are copied, bytes copied at a time, and bytes a
 * piece from which on the processor itself looks ahead. */
#define DDSTORE__COPY_AHEAD 8192u
#define DDSTORE__COPY_CHUNK 2048u
#define DDSTORE__COPY_ALONE 65536u
#define DDSTORE__CACHE_LINE 64u

/* Asks for memory that is read soon. It need not be mapped any more. */
static inline void ddstore__ask_for(const uint8_t *at, size_t bytes)
{
    const uint8_t *end = at + bytes;
    at = (const uint8_t *)((uintptr_t)at & ~(uintptr_t)(DDSTORE__CACHE_LINE - 1));
    for (; at < end; at += DDSTORE__CACHE_LINE)
        __builtin_prefetch(at, 0, 2);
}

/* How far memory has been asked for: up to byte `at` of piece `piece`. */
typedef struct ddstore__ahead {
    size_t piece, at;
    size_t lead; /* bytes by which that is ahead of the copying */
} ddstore__ahead;

static inline size_t ddstore__chunk(size_t left)
{
    return left < DDSTORE__COPY_CHUNK ? left : DDSTORE__COPY_CHUNK;
}

/* Moves on until it is far enough ahead, or at the end. */
static inline void ddstore__ahead_go(ddstore__ahead *a, const struct iovec *pieces,
                                     size_t n)
{
    while (a->lead < DDSTORE__COPY_AHEAD && a->piece < n) {
        const struct iovec *p = &pieces[a->piece];
        /* As below:
         * NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
        size_t bytes = ddstore__chunk(p->iov_len - a->at);
        ddstore__ask_for((const uint8_t *)p->iov_base + a->at, bytes);
        a->lead += bytes;
        a->at += bytes;
        if (a->at == p->iov_len) {
            a->piece++;
            a->at = 0;
        }
    }
}

/* A large piece in one go; nothing of it is left to be asked for. */
static inline void ddstore__copy_large(uint8_t *dst, const struct iovec *pieces,
                                       size_t i, ddstore__ahead *ahead)
{
    size_t bytes = pieces[i].iov_len;
    /* As below: NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
    memmove(dst, pieces[i].iov_base, bytes);
    if (ahead->piece <= i)
        *ahead = (ddstore__ahead){i + 1, 0, 0};
    else
        ahead->lead -= ahead->lead < bytes ? ahead->lead : bytes;
}

/* Copies n pieces to dst, back to back. */
static inline void ddstore__copy_pieces(uint8_t *dst, const struct iovec *pieces,
                                        size_t n)
{
    ddstore__ahead ahead = {0, 0, 0};
    for (size_t i = 0; i < n; dst += pieces[i++].iov_len) {
        /* All n are there, which analysers can't see of some callers:
         * NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign) */
        const uint8_t *from = pieces[i].iov_base;
        size_t length = pieces[i].iov_len;
        if (length >= DDSTORE__COPY_ALONE) {
            ddstore__copy_large(dst, pieces, i, &ahead);
            continue;
        }
        for (size_t at = 0, bytes; at < length; at += bytes) {
            bytes = ddstore__chunk(length - at);
            ahead.lead -= ahead.lead < bytes ? ahead.lead : bytes;
            ddstore__ahead_go(&ahead, pieces, n);
            /* dst may be of a view, so no memcpy. Pieces of NULL don't come here:
             * NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
            memmove(dst + at, from + at, bytes);
        }
    }
}

#endif

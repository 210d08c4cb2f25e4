/* Randomness and hashes: checksums by xxHash, proofs by SipHash-2-4-128. */
#include "base.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

void ddstore__random(void *out, size_t bytes)
{
    uint8_t *p = out;
    while (bytes) {
        ssize_t got = getrandom(p, bytes, 0);
        if (got < 0) /* EINTR: the only failure for requests of this size */
            continue;
        p += got;
        bytes -= (size_t)got;
    }
}

uint64_t ddstore__random_u64(void)
{
    uint64_t v;
    ddstore__random(&v, sizeof(v));
    return v;
}

uint64_t ddstore__hash64(const void *data, size_t bytes)
{
    return XXH64(data ? data : "", bytes, 0);
}

void ddstore__hash128(const void *data, size_t bytes, uint8_t out[16])
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    ddstore__put64(out, h.low64);
    ddstore__put64(out + 8, h.high64);
}

static inline uint64_t rotl(uint64_t x, int b)
{
    return x << b | x >> (64 - b);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = rotl(v[1], 13) ^ v[0], v[0] = rotl(v[0], 32);
    v[2] += v[3], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotl(v[1], 17) ^ v[2], v[2] = rotl(v[2], 32);
}

static void sip_rounds(uint64_t v[4], int n)
{
    while (n--)
        sip_round(v);
}

static void sip_word(uint64_t v[4], uint64_t m)
{
    v[3] ^= m;
    sip_rounds(v, 2);
    v[0] ^= m;
}

void ddstore__siphash128(const uint8_t key[16], const void *data, size_t bytes,
                         uint8_t out[16])
{
    uint64_t k0 = ddstore__get64(key), k1 = ddstore__get64(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du ^ 0xee,
                     k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    const uint8_t *p = data;
    size_t rest = bytes;
    for (; rest >= 8; rest -= 8, p += 8)
        sip_word(v, ddstore__get64(p));
    uint64_t last = (uint64_t)bytes << 56;
    for (size_t i = 0; i < rest; i++)
        last |= (uint64_t)p[i] << (8 * i);
    sip_word(v, last);
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    ddstore__put64(out, v[0] ^ v[1] ^ v[2] ^ v[3]);
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    ddstore__put64(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3]);
}

bool ddstore__same16(const uint8_t a[16], const uint8_t b[16])
{
    unsigned differ = 0;
    for (int i = 0; i < 16; i++)
        differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

void ddstore__hex16(const uint8_t in[16], char out[33])
{
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", in[i]);
}

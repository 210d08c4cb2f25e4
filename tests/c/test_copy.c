/* Copying pieces that lie far apart, compared with copying them one by one. */
#include "support.h"

#include "copy.h"

#define FROM_BYTES (1u << 20)
#define PIECES     300

static uint8_t from[FROM_BYTES], to[2 * FROM_BYTES], right[2 * FROM_BYTES];

/* Lengths around what the copying treats in its own way, and none. */
static const size_t lengths[] = {0,
                                 1,
                                 63,
                                 64,
                                 65,
                                 3072,
                                 DDSTORE__COPY_CHUNK - 1,
                                 DDSTORE__COPY_CHUNK,
                                 DDSTORE__COPY_CHUNK + 1,
                                 DDSTORE__COPY_AHEAD,
                                 DDSTORE__COPY_AHEAD + 1,
                                 DDSTORE__COPY_ALONE - 1,
                                 DDSTORE__COPY_ALONE,
                                 DDSTORE__COPY_ALONE + 1,
                                 3 * DDSTORE__COPY_ALONE};

static void check(const struct iovec *pieces, size_t n)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(right + used, pieces[i].iov_base, pieces[i].iov_len);
        used += pieces[i].iov_len;
    }
    memset(to, 0xee, used + 1);
    ddstore__copy_pieces(to, pieces, n);
    assert_memory_equal(to, right, used);
    assert_int_equal(to[used], 0xee); /* and nothing behind */
}

static void all_lengths(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDSTORE__COUNT(lengths); i++)
        for (size_t j = 0; j < DDSTORE__COUNT(lengths); j++)
            for (size_t k = 0; k < DDSTORE__COUNT(lengths); k += 3) {
                struct iovec pieces[3] = {
                    {from + 7, lengths[i]},
                    {from + FROM_BYTES - lengths[j], lengths[j]},
                    {from + FROM_BYTES / 3, lengths[k]},
                };
                check(pieces, 3);
            }
    check(NULL, 0);
}

static void random_pieces(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct iovec pieces[PIECES];
        size_t n = 0, bytes = 0;
        while (n < PIECES) {
            size_t length = lengths[ddstore__random_u64() % DDSTORE__COUNT(lengths)];
            length = ddstore__random_u64() % (length + 1);
            if (bytes + length >= sizeof(to))
                break;
            size_t at = ddstore__random_u64() % (FROM_BYTES - length);
            pieces[n++] = (struct iovec){from + at, length};
            bytes += length;
        }
        check(pieces, n);
    }
}

/* Rows of a view read into the same view: whole rows may lie on one another. */
static void in_place(void **state)
{
    (void)state;
    struct iovec piece = {to, DDSTORE__COPY_CHUNK};
    memcpy(to, from, DDSTORE__COPY_CHUNK);
    ddstore__copy_pieces(to, &piece, 1);
    assert_memory_equal(to, from, DDSTORE__COPY_CHUNK);
}

int main(void)
{
    for (size_t i = 0; i < FROM_BYTES; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    const struct CMUnitTest tests[] = {TEST(all_lengths), TEST(random_pieces),
                                       TEST(in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Layout: the rank of a row, against a search that just counts. */
#include "support.h"

#include "layout.h"

static int naive(const int64_t *rows, int ranks, int64_t row)
{
    int64_t end = 0;
    for (int r = 0; r < ranks; r++)
        if (row < (end += rows[r]))
            return r;
    return -1;
}

/* Every row of small layouts; the edges of every shard and random rows of large ones.
 */
static void agree(const int64_t *rows, int ranks)
{
    ddstore__layout l;
    uint64_t random = (uint64_t)ranks;
    assert_int_equal(ddstore__layout_open(rows, ranks, &l), 0);
    int64_t total = ddstore__layout_total(&l), start = 0;
    for (int64_t row = 0; row < total && row < 3000; row++) {
        assert_int_equal(ddstore__layout_rank(&l, row), naive(rows, ranks, row));
        assert_int_equal(ddstore__layout_search(&l, row), naive(rows, ranks, row));
    }
    for (int r = 0; r < ranks; r++) {
        assert_true(l.start[r] == start);
        if (rows[r]) {
            assert_int_equal(ddstore__layout_rank(&l, start), r);
            assert_int_equal(ddstore__layout_rank(&l, start + rows[r] - 1), r);
        }
        start += rows[r];
    }
    for (int i = 0; total && i < 2000; i++) {
        int64_t row = (int64_t)(next_random(&random) % (uint64_t)total);
        assert_int_equal(ddstore__layout_rank(&l, row), naive(rows, ranks, row));
    }
    assert_true(l.start[ranks] == total && total == start);
    ddstore__layout_close(&l);
}

static void equal_shards(void **state)
{
    (void)state;
    int64_t rows[64];
    for (int64_t q = 0; q < 40; q++)
        for (int ranks = 1; ranks < 64; ranks++) {
            for (int r = 0; r < ranks; r++)
                rows[r] = q;
            agree(rows, ranks);
            rows[ranks - 1] = q / 2; /* as a remainder leaves it */
            agree(rows, ranks);
            for (int r = ranks / 2; r < ranks; r++)
                rows[r] = 0;
            agree(rows, ranks);
        }
}

static void equal_shards_take_no_search(void **state)
{
    (void)state;
    ddstore__layout l;
    const int64_t equal[] = {5, 5, 5, 3, 0}, unequal[] = {5, 5, 6};
    assert_int_equal(ddstore__layout_open(equal, 5, &l), 0);
    assert_true(l.reciprocal != 0);
    ddstore__layout_close(&l);
    assert_int_equal(ddstore__layout_open(unequal, 3, &l), 0);
    assert_true(l.reciprocal == 0);
    ddstore__layout_close(&l);
}

static void unequal_and_empty_shards(void **state)
{
    (void)state;
    int64_t rows[100];
    uint64_t random = 42;
    for (int round = 0; round < 500; round++) {
        int ranks = 1 + (int)(next_random(&random) % 100);
        for (int r = 0; r < ranks; r++)
            rows[r] =
                next_random(&random) % 3 ? (int64_t)(next_random(&random) % 60) : 0;
        agree(rows, ranks);
    }
}

static void more_rows_than_2_to_the_32(void **state)
{
    (void)state;
    static const int64_t counts[] = {1,          2,           3,
                                     4294967295, 4294967296,  4294967297,
                                     1000000007, 1ll << 40,   (1ll << 40) + 1,
                                     1ll << 56,  999999999999};
    int64_t rows[50];
    for (size_t i = 0; i < DDSTORE__COUNT(counts); i++) {
        for (int r = 0; r < 50; r++)
            rows[r] = counts[i];
        agree(rows, 50);
        rows[49] = 1;
        agree(rows, 50);
        rows[20]++;
        agree(rows, 50);
    }
    const int64_t most[] = {INT64_MAX / 2, INT64_MAX / 2}, one[] = {INT64_MAX};
    agree(most, 2);
    agree(one, 1);
}

static void impossible_ones_are_refused(void **state)
{
    (void)state;
    ddstore__layout l;
    const int64_t negative[] = {3, -1}, too_many[] = {INT64_MAX, 1};
    assert_int_equal(ddstore__layout_open(negative, 2, &l), DDSTORE_EINVAL);
    ddstore__layout_close(&l);
    assert_int_equal(ddstore__layout_open(too_many, 2, &l), DDSTORE_EINVAL);
    ddstore__layout_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(equal_shards),
        TEST(equal_shards_take_no_search),
        TEST(unequal_and_empty_shards),
        TEST(more_rows_than_2_to_the_32),
        TEST(impossible_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

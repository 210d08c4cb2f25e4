/* The plan of a batch, carried out on arrays and compared with row-by-row copying. */
#include "support.h"

#include "plan.h"

#define SEED 7

#define RANKS 5
#define ROW   16

static const int64_t shard[RANKS] = {7, 0, 13, 1, 9}; /* 30 rows */
static uint8_t memory[RANKS][DDSTORE__HEAD_BYTES + 16 * ROW];
static ddstore__attachment part[RANKS];
static ddstore_var var;
static ddstore__reader *reader;

static int make(void **state)
{
    var = (ddstore_var){.ranks = RANKS, .row_bytes = ROW, .part = part};
    if (ddstore__layout_open(shard, RANKS, &var.layout))
        return -1;
    for (int r = 0; r < RANKS; r++)
        fill_rows(memory[r] + DDSTORE__HEAD_BYTES, var.layout.start[r], shard[r], ROW,
                  SEED);
    reader = ddstore__reader_enter(&var);
    return reader ? setup(state) : -1;
}

static int unmake(void **state)
{
    ddstore__reader_leave(reader);
    ddstore__layout_close(&var.layout);
    return teardown(state);
}

static size_t pieces_of(const ddstore__plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_requests; i++)
        n += plan->requests[i].n;
    return n;
}

/* Does what the transports would, and checks what they are promised. */
static void carry_out(const ddstore__plan *plan)
{
    int last_rank = -1;
    for (size_t i = 0; i < plan->n_requests; i++) {
        const ddstore__request *q = &plan->requests[i];
        assert_true(q->rank > last_rank); /* one request a rank */
        last_rank = q->rank;
        assert_ptr_equal(q->from, &part[q->rank]);
        assert_true(q->n > 0);
        uint64_t end = 0;
        for (size_t j = 0; j < q->n; j++) {
            const ddstore__piece *p = &q->pieces[j];
            assert_true(p->offset >= end && p->offset >= DDSTORE__HEAD_BYTES);
            end = p->offset + p->bytes;
            assert_true(end <= DDSTORE__HEAD_BYTES + (uint64_t)shard[q->rank] * ROW);
            memcpy(p->dst, memory[q->rank] + p->offset, p->bytes);
        }
    }
}

static void copy_repeats(const ddstore__plan *plan, uint8_t *dst)
{
    for (size_t i = 0; i < plan->n_repeats; i++)
        memcpy(dst + plan->repeats[i].to * ROW, dst + plan->repeats[i].from * ROW,
               plan->repeats[i].rows * ROW);
}

static ddstore__plan plan_of(const int64_t *rows, size_t n, uint8_t *dst)
{
    ddstore__plan plan;
    ddstore__far_run *far = malloc((n + !n) * sizeof(*far));
    for (size_t i = 0; i < n; i++)
        far[i] = (ddstore__far_run){rows[i], 1, i};
    assert_int_equal(ddstore__plan_make(reader, &var, far, n, dst, &plan), 0);
    free(far); /* the plan doesn't need it */
    return plan;
}

static ddstore__plan try_rows(const int64_t *rows, size_t n)
{
    static uint8_t dst[400 * ROW];
    memset(dst, 0xaa, sizeof(dst));
    ddstore__plan plan = plan_of(rows, n, dst);
    carry_out(&plan);
    copy_repeats(&plan, dst);
    assert_true(batch_is(dst, rows, n, ROW, SEED));
    for (size_t i = n * ROW; i < sizeof(dst); i++)
        assert_int_equal(dst[i], 0xaa);
    return plan;
}

static void neighbours_are_one_piece(void **state)
{
    (void)state;
    int64_t rows[30];
    for (int64_t i = 0; i < 30; i++)
        rows[i] = i;
    ddstore__plan plan = try_rows(rows, 30);
    assert_int_equal(plan.n_requests, 4); /* the ranks that have rows */
    assert_int_equal(pieces_of(&plan), 4);
    assert_int_equal(plan.n_repeats, 0);
}

static void neighbours_that_land_apart_are_not(void **state)
{
    (void)state;
    const int64_t down[] = {5, 4, 3, 2}, gap[] = {0, 2, 4}, cross[] = {6, 7};
    ddstore__plan plan = try_rows(down, 4);
    assert_int_equal(pieces_of(&plan), 4);
    plan = try_rows(gap, 3);
    assert_int_equal(pieces_of(&plan), 3);
    plan = try_rows(cross, 2); /* of two ranks */
    assert_int_equal(plan.n_requests, 2);
}

static void repeats_are_fetched_once(void **state)
{
    (void)state;
    int64_t rows[300];
    for (size_t i = 0; i < 300; i++)
        rows[i] = 20;
    ddstore__plan plan = try_rows(rows, 300);
    assert_int_equal(plan.n_requests, 1);
    assert_int_equal(pieces_of(&plan), 1);
    assert_int_equal(plan.n_repeats, 299);
    const int64_t mixed[] = {29, 0, 29, 8, 0, 29, 1, 1};
    plan = try_rows(mixed, 8);
    assert_int_equal(plan.n_repeats, 4);
    const int64_t runs[] = {3, 4, 5, 3, 4, 5};
    plan = try_rows(runs, 6);
    assert_int_equal(pieces_of(&plan), 1);
}

/* Runs that overlap, begin together, lie in each other, repeat. */
static void rows_of_runs_are_fetched_once(void **state)
{
    (void)state;
    static uint8_t dst[400 * ROW];
    int64_t rows[400];
    uint64_t random = 5;
    for (int round = 0; round < 3000; round++) {
        ddstore__far_run runs[40];
        size_t n = next_random(&random) % 40, total = 0;
        bool wanted[30] = {false};
        for (size_t i = 0; i < n; i++) {
            int64_t row = (int64_t)(next_random(&random) % 30);
            int64_t end = var.layout.start[ddstore__layout_rank(&var.layout, row) + 1];
            int64_t most = end - row < 10 ? end - row : 10;
            int64_t count = 1 + (int64_t)(next_random(&random) % (uint64_t)most);
            runs[i] = (ddstore__far_run){row, count, total};
            for (int64_t j = 0; j < count; j++, wanted[row++] = true)
                rows[total++] = row;
        }
        ddstore__plan plan;
        memset(dst, 0xaa, sizeof(dst));
        assert_int_equal(ddstore__plan_make(reader, &var, runs, n, dst, &plan), 0);
        carry_out(&plan);
        uint64_t fetched = 0, different = 0;
        for (size_t i = 0; i < plan.n_requests; i++)
            for (size_t j = 0; j < plan.requests[i].n; j++)
                fetched += plan.requests[i].pieces[j].bytes / ROW;
        for (int i = 0; i < 30; i++)
            different += wanted[i];
        assert_int_equal(fetched, different);
        copy_repeats(&plan, dst);
        assert_true(batch_is(dst, rows, total, ROW, SEED));
    }
}

static void one_row_and_none(void **state)
{
    (void)state;
    for (int64_t row = 0; row < 30; row++) {
        ddstore__plan plan = try_rows(&row, 1);
        assert_int_equal(pieces_of(&plan), 1);
    }
    ddstore__plan plan = try_rows(NULL, 0);
    assert_int_equal(plan.n_requests, 0);
}

static void random_batches(void **state)
{
    (void)state;
    int64_t rows[400];
    uint64_t random = 3;
    for (int round = 0; round < 3000; round++) {
        size_t n = next_random(&random) % 400;
        uint64_t mode = next_random(&random) % 3;
        for (size_t i = 0; i < n; i++)
            rows[i] = mode && i && rows[i - 1] < 29 && next_random(&random) % 4
                          ? rows[i - 1] + (mode == 1)
                          : (int64_t)(next_random(&random) % 30);
        (void)try_rows(rows, n);
    }
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(neighbours_are_one_piece), TEST(neighbours_that_land_apart_are_not),
        TEST(repeats_are_fetched_once), TEST(one_row_and_none),
        TEST(random_batches),           TEST(rows_of_runs_are_fetched_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

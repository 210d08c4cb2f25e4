/* Segments: committed memory, found by run and id alone, and gone when withdrawn. */
#include "support.h"

#include "segment.h"

#include <sys/mman.h>
#include <sys/vfs.h>

static uint8_t run[16], other_run[16];

static ddstore__segment *create(uint64_t bytes)
{
    ddstore__segment *seg = NULL;
    ddstore__random(run, 16);
    ddstore__random(other_run, 16);
    CHECK(ddstore__segment_create(run, bytes, "a test", &seg, &fault) == 0);
    return seg;
}

static void memory_is_zeroed_and_committed(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 1 << 20, (65 << 20) + 1};
    for (size_t i = 0; i < DDSTORE__COUNT(sizes); i++) {
        ddstore__segment *seg = create(sizes[i]);
        struct stat st;
        assert_int_equal(fstat(seg->fd, &st), 0);
        assert_true((uint64_t)st.st_size >= DDSTORE__HEAD_BYTES + sizes[i]);
        assert_true((uint64_t)st.st_blocks * 512 >= DDSTORE__HEAD_BYTES + sizes[i]);
        uint8_t *data = ddstore__segment_data(seg);
        assert_int_equal((uintptr_t)data % 4096, 0);
        for (uint64_t b = 0; b < sizes[i]; b += 997)
            assert_int_equal(data[b], 0);
        if (sizes[i])
            data[sizes[i] - 1] = 1;
        ddstore__segment_withdraw(seg);
    }
}

static void nobody_resizes_it(void **state)
{
    (void)state;
    ddstore__segment *seg = create(10000);
    assert_int_equal(ftruncate(seg->fd, 100), -1);
    assert_int_equal(ftruncate(seg->fd, 1 << 30), -1);
    assert_true(fcntl(seg->fd, F_GETFD) & FD_CLOEXEC);
    ddstore__segment_withdraw(seg);
}

static void the_token_stands_at_its_head(void **state)
{
    (void)state;
    ddstore__segment *a = create(10);
    ddstore__segment *b = create(10);
    ddstore__descriptor d;
    const uint8_t owner[16] = "who";
    ddstore__segment_describe(a, owner, &d);
    assert_memory_equal(d.token, a->map, 16);
    assert_memory_equal(d.owner, owner, 16);
    assert_memory_not_equal(a->token, b->token, 16);
    assert_true(d.id == a->id && d.bytes == 10 && d.fd == (uint32_t)a->fd);
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%u", getpid(), d.fd);
    int fd = open(path, O_RDONLY);
    uint8_t head[16];
    assert_int_equal(read(fd, head, 16), 16);
    assert_memory_equal(head, d.token, 16);
    close(fd);
    ddstore__segment_withdraw(a);
    ddstore__segment_withdraw(b);
}

static void only_its_run_finds_it(void **state)
{
    (void)state;
    ddstore__segment *seg = create(10);
    uint64_t id = seg->id;
    assert_ptr_equal(ddstore__segment_find(id, run), seg);
    ddstore__segment_unref(seg);
    assert_null(ddstore__segment_find(id, other_run));
    assert_null(ddstore__segment_find(id ^ 1, run));
    assert_null(ddstore__segment_find(id ^ 1ull << 40, run));
    assert_null(ddstore__segment_find(UINT64_MAX, run));
    ddstore__segment_withdraw(seg);
    assert_null(ddstore__segment_find(id, run));
}

static void ids_are_not_used_again(void **state)
{
    (void)state;
    ddstore__segment *seg = create(1);
    uint64_t first = seg->id;
    ddstore__segment_withdraw(seg);
    seg = create(1);
    assert_true(seg->id != first); /* although its place in the table is the same */
    ddstore__segment_withdraw(seg);
}

static void many_at_once(void **state)
{
    (void)state;
    static ddstore__segment *seg[300];
    uint8_t runs[300][16];
    for (int i = 0; i < 300; i++) {
        seg[i] = create((uint64_t)i);
        memcpy(runs[i], run, 16);
    }
    for (int i = 0; i < 300; i += 2)
        ddstore__segment_withdraw(seg[i]);
    for (int i = 1; i < 300; i += 2) {
        assert_ptr_equal(ddstore__segment_find(seg[i]->id, runs[i]), seg[i]);
        ddstore__segment_unref(seg[i]);
        ddstore__segment_withdraw(seg[i]);
    }
}

static void a_reference_outlives_withdrawal(void **state)
{
    (void)state;
    ddstore__segment *seg = create(5000);
    ddstore__segment_ref(seg);
    ddstore__segment_data(seg)[4999] = 9;
    ddstore__head *head = (ddstore__head *)(void *)seg->map;
    assert_int_equal(atomic_load(&head->closing), 0);
    ddstore__segment_withdraw(seg);
    assert_int_equal(atomic_load(&head->closing), 1); /* who maps it is told */
    assert_int_equal(seg->fd, -1);
    assert_int_equal(ddstore__segment_data(seg)[4999], 9);
    ddstore__segment_unref(seg);
    ddstore__segment_withdraw(NULL);
}

static void too_much_is_an_error_with_figures(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1000ull << 30, 1ull << 60, 1ull << 61};
    for (size_t i = 0; i < DDSTORE__COUNT(sizes); i++) {
        ddstore__segment *seg = NULL;
        CHECK_FAILS(ddstore__segment_create(run, sizes[i], "variable v", &seg, &fault),
                    DDSTORE_ENOMEM, "variable v needs", "MiB of memory", "are free",
                    "limit");
        assert_null(seg);
    }
    ddstore__segment *seg = create(1 << 20); /* and nothing was lost by it */
    ddstore__segment_withdraw(seg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_is_zeroed_and_committed),  TEST(nobody_resizes_it),
        TEST(the_token_stands_at_its_head),    TEST(only_its_run_finds_it),
        TEST(ids_are_not_used_again),          TEST(many_at_once),
        TEST(a_reference_outlives_withdrawal), TEST(too_much_is_an_error_with_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How much memory may be committed, and how a lack of it is told. */
#include "support.h"

#include "memory.h"

static void figures_make_sense(void **state)
{
    (void)state;
    ddstore__memory m;
    ddstore__memory_read(&m);
    assert_true(m.free > 0 && m.free < m.limit);
    assert_true(m.limit < 1ull << 60); /* something bounds it */
    assert_true(m.bound[0] != '\0');
    char text[64];
    uint64_t total = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    assert_non_null(f);
    while (fscanf(f, "%63s", text) == 1)
        if (strcmp(text, "MemTotal:") == 0)
            assert_int_equal(fscanf(f, "%lu", &total), 1);
    fclose(f);
    assert_true(m.limit <= total * 1024);
    assert_true(m.free <= m.limit - m.limit / 20); /* 5 % stay */
}

static void what_fits_passes(void **state)
{
    (void)state;
    fault.code = 5;
    assert_int_equal(ddstore__memory_check(0, "x", &fault), 0);
    assert_int_equal(ddstore__memory_check(1 << 20, "x", &fault), 0);
    assert_int_equal(fault.code, 5);
}

static void what_does_not_is_told_with_figures(void **state)
{
    (void)state;
    ddstore__memory m;
    char limit[64];
    CHECK_FAILS(ddstore__memory_check(1000ull << 30, "variable v", &fault),
                DDSTORE_ENOMEM, "variable v needs 1024000.0 MiB", "are free", "limit");
    ddstore__memory_read(&m);
    snprintf(limit, sizeof(limit), "%.1f MiB of ", (double)m.limit / 1048576);
    assert_non_null(strstr(fault.message, limit));
    assert_non_null(strstr(fault.message, m.bound));
    assert_int_equal(ddstore__memory_check(UINT64_MAX, "x", &fault), DDSTORE_ENOMEM);
    assert_int_equal(ddstore__memory_check(UINT64_MAX, "x", NULL), DDSTORE_ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(figures_make_sense),
        TEST(what_fits_passes),
        TEST(what_does_not_is_told_with_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

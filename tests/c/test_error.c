/* Errors: filled, wrapped, cut to size, and the names of the codes. */
#include "support.h"

static void fill_says_code_and_sentence(void **state)
{
    (void)state;
    assert_int_equal(ddstore__fail(&fault, DDSTORE_EKEY, "no %s of %d", "row", 7),
                     DDSTORE_EKEY);
    assert_int_equal(fault.code, DDSTORE_EKEY);
    assert_string_equal(fault.message, "no row of 7");
}

static void no_error_is_asked_for(void **state)
{
    (void)state;
    assert_int_equal(ddstore__fail(NULL, DDSTORE_EKEY, "x"), DDSTORE_EKEY);
    assert_int_equal(ddstore__fail_errno(NULL, ENOENT, "x"), DDSTORE_ESYS);
    assert_int_equal(ddstore__fail_errno(NULL, ENOMEM, "x"), DDSTORE_ENOMEM);
    assert_int_equal(ddstore__wrap(NULL, DDSTORE_EPEER, "x"), DDSTORE_EPEER);
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    static char text[2 * sizeof(fault.message)];
    memset(text, 'a', sizeof(text) - 1);
    ddstore__fail(&fault, DDSTORE_EINVAL, "%s", text);
    assert_int_equal(strlen(fault.message), sizeof(fault.message) - 1);
    ddstore__fail_errno(&fault, EMFILE, "%s", text);
    assert_int_equal(strlen(fault.message), sizeof(fault.message) - 1);
    ddstore__fail(&fault, DDSTORE_EINVAL, "%s", text);
    ddstore__wrap(&fault, DDSTORE_EINVAL, "outer");
    assert_int_equal(strlen(fault.message), sizeof(fault.message) - 1);
    assert_memory_equal(fault.message, "outer: aaa", 10);
    ddstore__wrap(&fault, DDSTORE_EINVAL, "%s", text);
    assert_int_equal(strlen(fault.message), sizeof(fault.message) - 1);
}

static void errno_is_told_with_what_to_do(void **state)
{
    (void)state;
    CHECK_FAILS(ddstore__fail_errno(&fault, ENOENT, "file %s", "f"), DDSTORE_ESYS,
                "file f: No such file");
    CHECK_FAILS(ddstore__fail_errno(&fault, EMFILE, "f"), DDSTORE_ESYS, "ulimit -n");
    CHECK_FAILS(ddstore__fail_errno(&fault, ENFILE, "f"), DDSTORE_ESYS, "ulimit -n");
    CHECK_FAILS(ddstore__fail_errno(&fault, ENOMEM, "f"), DDSTORE_ENOMEM, "memory");
}

static void wrapping_puts_words_before(void **state)
{
    (void)state;
    ddstore__fail(&fault, DDSTORE_EPEER, "it is gone");
    assert_int_equal(ddstore__wrap(&fault, DDSTORE_EPEER, "rank %d", 3), DDSTORE_EPEER);
    assert_string_equal(fault.message, "rank 3: it is gone");
    assert_int_equal(fault.late, 0);
}

static void wrapping_keeps_that_bytes_are_late(void **state)
{
    (void)state;
    ddstore__fail(&fault, DDSTORE_EPEER, "it is gone");
    fault.late = 1;
    ddstore__wrap(&fault, DDSTORE_ECLOSED, "rank %d", 3);
    assert_int_equal(fault.late, 1);
    ddstore__fail(&fault, DDSTORE_EPEER, "another");
    assert_int_equal(fault.late, 0);
}

static void every_code_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(ddstore_code_name(DDSTORE_OK), "DDSTORE_OK");
    assert_string_equal(ddstore_code_name(DDSTORE_EPEER), "DDSTORE_EPEER");
    assert_string_equal(ddstore_code_name(DDSTORE_EFORKED), "DDSTORE_EFORKED");
    assert_string_equal(ddstore_code_name(DDSTORE_EFORKED - 1), "unknown");
    assert_string_equal(ddstore_code_name(1), "unknown");
    assert_string_equal(ddstore_code_name(INT32_MIN), "unknown");
    assert_string_equal(ddstore_code_name(INT32_MAX), "unknown");
}

static void version_is_told(void **state)
{
    (void)state;
    assert_string_equal(ddstore_version(), DDSTORE_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(fill_says_code_and_sentence), TEST(no_error_is_asked_for),
        TEST(long_messages_are_cut),       TEST(errno_is_told_with_what_to_do),
        TEST(wrapping_puts_words_before),  TEST(wrapping_keeps_that_bytes_are_late),
        TEST(every_code_has_a_name),       TEST(version_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

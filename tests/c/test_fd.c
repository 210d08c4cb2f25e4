/* The library's own descriptors: a forked child closes exactly them. */
#include "support.h"

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static int new_fd(void)
{
    int fd = open("/dev/null", O_RDONLY);
    assert_true(fd >= 0);
    return fd;
}

static void a_child_closes_the_librarys(void **state)
{
    (void)state;
    int own[3], others = new_fd(), high = new_fd();
    for (int i = 0; i < 3; i++)
        own[i] = ddstore__fd_own(new_fd());
    assert_int_equal(dup2(high, 900), 900);
    ddstore__fd_own(900);
    close(high);
    pid_t pid = fork();
    if (pid == 0) {
        ddstore__fd_close_all_in_child();
        bool good = is_open(others) && !is_open(900);
        for (int i = 0; i < 3; i++)
            good = good && !is_open(own[i]);
        ddstore__fd_close_all_in_child(); /* again: nothing is left */
        _exit(good && is_open(others) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    for (int i = 0; i < 3; i++) {
        assert_true(is_open(own[i])); /* the parent is unharmed */
        ddstore__fd_close(own[i]);
        assert_false(is_open(own[i]));
    }
    ddstore__fd_close(900);
    close(others);
}

static void a_closed_one_is_no_longer_the_librarys(void **state)
{
    (void)state;
    int fd = ddstore__fd_own(new_fd());
    ddstore__fd_close(fd);
    int again = new_fd(); /* the same number, of the host program now */
    assert_int_equal(again, fd);
    pid_t pid = fork();
    if (pid == 0) {
        ddstore__fd_close_all_in_child();
        _exit(is_open(again) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(again);
}

static void no_descriptor_is_no_harm(void **state)
{
    (void)state;
    assert_int_equal(ddstore__fd_own(-1), -1);
    ddstore__fd_close(-1);
    assert_int_equal(ddstore__fd_own(INT32_MAX), INT32_MAX); /* beyond the table */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_child_closes_the_librarys),
        TEST(a_closed_one_is_no_longer_the_librarys),
        TEST(no_descriptor_is_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

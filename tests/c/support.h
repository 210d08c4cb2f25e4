/* What the C tests share: a directory a test, members in processes of their own that
 * talk to the test by single bytes, and rows whose bytes tell their place. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEST_S      90 /* a test that takes longer is killed */
#define MEMBERS_MAX 32

static char dir[64]; /* a fresh directory a test */
static ddstore_error fault;
static bool in_member; /* this process is a member: failures end it */

/* ThreadSanitizer can't follow a process that was forked by one with several threads
 * and then starts threads of its own: tests fork their members first. */
#ifdef __SANITIZE_THREAD__
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

/* A read beside an update may see a mix of old and new bytes, as the contract says. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:ddstore_update\n";
}
#endif

/* -- checks that work in members too, where cmocka's would run on into its other tests
 * -- */

static inline void failed_at(const char *file, int line, const char *text)
{
    if (!in_member)
        fail_msg("%s:%d: %s (last error: %d %s)", file, line, text, fault.code,
                 fault.message);
    fprintf(stderr, "member %d, %s:%d: %s (last error: %d %s)\n", (int)getpid(), file,
            line, text, fault.code, fault.message);
    _exit(99);
}

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition))                                                              \
            failed_at(__FILE__, __LINE__, #condition);                                 \
    } while (0)

/* The call fails with that code, which fault has too, and its message has all the
 * words.
 */
#define CHECK_FAILS(call, want, ...)                                                   \
    do {                                                                               \
        fault = (ddstore_error){0};                                                    \
        int rc_ = (call);                                                              \
        const char *words_[] = {__VA_ARGS__};                                          \
        if (rc_ != (want) || fault.code != (want))                                     \
            failed_at(__FILE__, __LINE__, #call ": not " #want);                       \
        for (size_t i_ = 0; i_ < DDSTORE__COUNT(words_); i_++)                         \
            if (!strstr(fault.message, words_[i_]))                                    \
                failed_at(__FILE__, __LINE__, words_[i_]);                             \
    } while (0)

static inline double seconds_since(int64_t begin)
{
    return (double)(ddstore__now_ns() - begin) / 1e9;
}

static inline void sleep_ms(int ms)
{
    int64_t until = ddstore__now_ns() + ms * DDSTORE__MS;
    for (int64_t left; (left = until - ddstore__now_ns()) > 0;)
        ddstore__sleep_ns(left);
}

/* -- members -- */

typedef struct member {
    pid_t pid; /* 0: ended */
    int fd;
} member;

typedef void member_fn(int fd, void *arg);

static member members[MEMBERS_MAX]; /* so that a failed test leaves none behind */
static size_t n_members;

static inline member *member_start(member_fn *fn, void *arg)
{
    int pair[2];
    size_t slot = 0;
    while (slot < n_members && members[slot].pid)
        slot++;
    CHECK(slot < MEMBERS_MAX);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        in_member = true;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(TEST_S);
        close(pair[0]);
        for (size_t i = 0; i < n_members; i++)
            if (members[i].pid)
                close(members[i].fd);
        n_members = 0;
        fn(pair[1], arg);
        fflush(NULL);
        _exit(0);
    }
    close(pair[1]);
    members[slot] = (member){pid, pair[0]};
    n_members += slot == n_members;
    return &members[slot];
}

static inline void say(int fd, char what)
{
    CHECK(send(fd, &what, 1, MSG_NOSIGNAL) == 1);
}

/* The next byte from the other side; 0: it is gone. */
static inline char hear(int fd)
{
    char what = 0;
    ssize_t got;
    while ((got = recv(fd, &what, 1, 0)) < 0 && errno == EINTR)
        ;
    return got == 1 ? what : 0;
}

#define EXPECT(fd, what) CHECK(hear(fd) == (what))

/* Tells a member something and waits for its 'k'. */
#define ORDER(m, what)                                                                 \
    do {                                                                               \
        say((m)->fd, what);                                                            \
        EXPECT((m)->fd, 'k');                                                          \
    } while (0)

static inline int member_wait(member *m)
{
    int status = 0;
    while (waitpid(m->pid, &status, 0) < 0 && errno == EINTR)
        ;
    m->pid = 0;
    close(m->fd);
    return status;
}

/* Lets it end by itself (its socket ends) and expects that nothing failed there. */
static inline void member_end(member *m)
{
    if (!m->pid)
        return;
    shutdown(m->fd, SHUT_WR);
    CHECK(member_wait(m) == 0);
}

static inline void member_kill(member *m)
{
    kill(m->pid, SIGKILL);
    (void)member_wait(m);
}

/* Returns once all its threads stand still. */
static inline void member_stop(const member *m)
{
    int status;
    kill(m->pid, SIGSTOP);
    while (waitpid(m->pid, &status, WUNTRACED) < 0 && errno == EINTR)
        ;
}

/* How many descriptors a process has. */
static inline int count_fds(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* -- a test's frame -- */

static inline int remove_one(const char *path, const struct stat *st, int type,
                             struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline int setup(void **state)
{
    (void)state;
    n_members = 0;
    snprintf(dir, sizeof(dir), "/tmp/ddstore-test.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    unsetenv("DDSTORE_RUN_ID");
    setenv("DDSTORE_FABRIC", "tcp", 1);
    alarm(TEST_S);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    alarm(0);
    ddstore_set_interrupt(NULL, NULL);
    ddstore_set_logger(NULL, NULL, 0);
    for (size_t i = 0; i < n_members; i++)
        if (members[i].pid)
            member_kill(&members[i]);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* -- rows whose bytes tell their place -- */

static inline uint8_t byte_at(uint64_t place, uint8_t seed)
{
    return (uint8_t)(((place + 1) * 0x9e3779b97f4a7c15u >> 53) + seed);
}

static inline void fill_rows(void *out, int64_t first, int64_t rows, uint64_t row_bytes,
                             uint8_t seed)
{
    uint8_t *p = out;
    uint64_t place = (uint64_t)first * row_bytes;
    for (uint64_t i = 0; i < (uint64_t)rows * row_bytes; i++)
        p[i] = byte_at(place + i, seed);
}

/* Whether `rows` rows are those from global row `first` on. */
static inline bool rows_are(const void *got, int64_t first, int64_t rows,
                            uint64_t row_bytes, uint8_t seed)
{
    const uint8_t *p = got;
    uint64_t place = (uint64_t)first * row_bytes;
    for (uint64_t i = 0; i < (uint64_t)rows * row_bytes; i++)
        if (p[i] != byte_at(place + i, seed)) {
            fprintf(stderr, "row %lld, byte %llu: %u instead of %u\n",
                    (long long)(first + (int64_t)(i / row_bytes)),
                    (unsigned long long)(i % row_bytes), p[i],
                    byte_at(place + i, seed));
            return false;
        }
    return true;
}

static inline bool batch_is(const uint8_t *got, const int64_t *rows, size_t n,
                            uint64_t row_bytes, uint8_t seed)
{
    for (size_t i = 0; i < n; i++)
        if (!rows_are(got + i * row_bytes, rows[i], 1, row_bytes, seed))
            return false;
    return true;
}

/* A random sequence that is the same in each run. */
static inline uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif

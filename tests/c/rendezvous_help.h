/* What the rendezvous tests share: a directory a test, members as threads or processes.
 */
#ifndef RENDEZVOUS_HELP_H
#define RENDEZVOUS_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/rendezvous.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char base[64]; /* a fresh directory a test */
static char shared[96];

static int remove_one(const char *path, const struct stat *st, int type,
                      struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline int fresh_at(const char *where)
{
    snprintf(base, sizeof(base), "%s/rdv.XXXXXX", where);
    if (!mkdtemp(base))
        return -1;
    snprintf(shared, sizeof(shared), "%s/meet", base);
    unsetenv("DDSTORE_RUN_ID");
    alarm(60);
    return 0;
}

static inline int setup(void **state)
{
    (void)state;
    return fresh_at("/tmp");
}

/* In memory, where thousands of steps shall not wait for a disk. */
static inline int setup_fast(void **state)
{
    (void)state;
    return fresh_at(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
}

static inline int teardown(void **state)
{
    (void)state;
    alarm(0);
    nftw(base, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static inline ddstore_comm *open_or_die(int rank, int size, double timeout_s)
{
    ddstore_error err = {0};
    ddstore_comm *comm;
    ddstore_comm_file how = {
        .dir = shared, .ns = "s0", .rank = rank, .size = size, .timeout_s = timeout_s};
    if (ddstore_comm_open_file(&how, &comm, &err)) {
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
        abort();
    }
    return comm;
}

static inline int try_open(int rank, int size, double timeout_s, ddstore_comm **comm,
                           ddstore_error *err)
{
    ddstore_comm_file how = {
        .dir = shared, .ns = "s0", .rank = rank, .size = size, .timeout_s = timeout_s};
    return ddstore_comm_open_file(&how, comm, err);
}

struct thread_member {
    void (*fn)(int rank, int size, void *arg);
    int rank, size;
    void *arg;
};

static inline void *thread_main(void *arg)
{
    struct thread_member *m = arg;
    m->fn(m->rank, m->size, m->arg);
    return NULL;
}

static inline void run_threads(int size, void (*fn)(int, int, void *), void *arg)
{
    pthread_t *threads = calloc((size_t)size, sizeof(*threads));
    struct thread_member *m = calloc((size_t)size, sizeof(*m));
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    for (int r = 0; r < size; r++) {
        m[r] = (struct thread_member){fn, r, size, arg};
        assert_int_equal(pthread_create(&threads[r], &attr, thread_main, &m[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    pthread_attr_destroy(&attr);
    free(threads);
    free(m);
}

/* fn's result is the exit status. */
static inline pid_t start(int (*fn)(int rank, int size, void *arg), int rank, int size,
                          void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        _exit(fn(rank, size, arg));
    }
    assert_true(pid > 0);
    return pid;
}

static inline int finish(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

static inline int count_files(const char *path, const char *part)
{
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char below[1024];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(below, sizeof(below), "%.700s/%s", path, e->d_name);
        if (lstat(below, &st) == 0 && S_ISDIR(st.st_mode))
            n += count_files(below, part);
        else if (!part || strstr(e->d_name, part))
            n++;
    }
    closedir(dir);
    return n;
}

static inline void sleep_ms(int ms)
{
    ddstore__sleep_ns(ms * DDSTORE__MS);
}

static inline double seconds(void)
{
    return (double)ddstore__now_ns() / 1e9;
}

#endif

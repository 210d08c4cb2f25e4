/* Work in a forked child with a time limit: what crashes or hangs there is told to the
 * parent as a sentence, and Slurm's own process goes on. */
#include "spank_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_LONGEST (1 << 20) /* groups of a user among it */
#define REAP_MS        30
#define OUT            3 /* the child's only descriptor beside the standard ones */
#define NOT_DROPPED    99

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static int64_t left_ms = 1500;

void ddstore__child_budget(int timeout_ms)
{
    left_ms = timeout_ms;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

/* ---- in the child ---- */

static void close_others(void)
{
    if (syscall(SYS_close_range, OUT + 1, ~0u, 0) == 0)
        return;
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = OUT + 1; fd < (most > 0 && most < 65536 ? most : 65536); fd++)
        close(fd);
}

/* Nothing of the parent's: no descriptor, handler, signal mask, core file. */
static void stand_alone(int out)
{
    if (out != OUT)
        dup2(out, OUT);
    close_others();
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < OUT && null >= 0; fd++)
        dup2(null, fd);
    if (null > OUT)
        close(null);
    const struct sigaction as_usual = {.sa_handler = SIG_DFL};
    for (int n = 1; n < NSIG; n++)
        (void)sigaction(n, &as_usual, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)prctl(PR_SET_DUMPABLE, 0);
    umask(077);
    alarm(10); /* should the parent be gone */
}

/* Becomes a user for good: slurmstepd, where it only acts as one, is root still. */
static bool become(const ddstore__spank_user *as)
{
    uid_t uid = as ? as->uid : geteuid();
    gid_t gid = as ? as->gid : getegid();
    if (as && geteuid() == 0 && setgroups(as->n_groups, as->groups))
        return false;
    if (setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        return false;
    return uid == 0 || setresuid((uid_t)-1, 0, (uid_t)-1) != 0;
}

static void __attribute__((noreturn)) be_child(const ddstore__spank_errand *e, int out)
{
    stand_alone(out);
    if (!become(e->as))
        _exit(NOT_DROPPED);
    e->work(e->arg, OUT);
    (void)ddstore__lines_put(OUT, "end", "%s", "");
    _exit(0);
}

/* ---- in the parent ---- */

/* All signals wait while there are two of us, so that no handler runs in the child. */
static pid_t start(const ddstore__spank_errand *e, int out)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0)
        be_child(e, out);
    int code = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return pid;
}

/* Until the child closes its end, by its own death at the latest. False: too late. */
static bool listen_to(int in, int64_t until_ms, char **text)
{
    size_t n = 0, room = 0;
    for (;;) {
        int64_t wait_ms = until_ms - now_ms();
        struct pollfd look = {.fd = in, .events = POLLIN};
        int ready = wait_ms > 0 ? poll(&look, 1, (int)wait_ms) : 0;
        if (ready == 0)
            return false;
        if (ready < 0 && errno == EINTR)
            continue;
        if (n + 1 >= room) {
            room = room ? 2 * room : 4096;
            char *more = room <= ANSWER_LONGEST ? realloc(*text, room) : NULL;
            if (!more)
                return false;
            *text = more;
            more[n] = '\0';
        }
        ssize_t got = read(in, *text + n, room - n - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return true;
        n += (size_t)got;
        (*text)[n] = '\0';
    }
}

/* True: it is no more, and *status tells how it ended (0 where another has taken that).
 * A child in the midst of a file system that hangs can't be waited for. */
static bool reap(pid_t pid, int *status)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    for (int i = 0; i < REAP_MS; i++) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid)
            return true;
        if (got < 0 && errno != EINTR) {
            *status = 0;
            return true;
        }
        nanosleep(&ms, NULL);
    }
    return false;
}

static void judge(const ddstore__spank_errand *e, pid_t pid, bool in_time,
                  int64_t limit_ms, ddstore__spank_answer *a)
{
    int status = 0;
    if (!in_time)
        kill(pid, SIGKILL);
    bool gone = reap(pid, &status);
    if (!in_time)
        snprintf(a->why, sizeof(a->why), "%s took more than %lld ms, and was given up",
                 e->what, (long long)limit_ms);
    else if (gone && WIFSIGNALED(status))
        snprintf(a->why, sizeof(a->why), "%s crashed (signal %d)", e->what,
                 WTERMSIG(status));
    else if (gone && WIFEXITED(status) && WEXITSTATUS(status) == NOT_DROPPED)
        snprintf(a->why, sizeof(a->why), "%s can't become the job's user", e->what);
    else if (!ddstore__lines_whole(a->text))
        snprintf(a->why, sizeof(a->why), "%s ended early (status %#x)", e->what,
                 (unsigned)status);
}

void ddstore__child_run(const ddstore__spank_errand *e, int share,
                        ddstore__spank_answer *a)
{
    int ends[2];
    int64_t begun = now_ms(), limit_ms = left_ms * share / 100;
    a->why[0] = '\0';
    a->text = calloc(1, 1);
    if (!a->text || limit_ms <= 0) {
        snprintf(a->why, sizeof(a->why), "there is no %s left for %s",
                 a->text ? "time" : "memory", e->what);
        return;
    }
    if (pipe2(ends, O_CLOEXEC)) {
        snprintf(a->why, sizeof(a->why), "%s has no pipe: %s", e->what,
                 strerror(errno));
        return;
    }
    pid_t pid = start(e, ends[1]);
    int code = errno;
    close(ends[1]);
    if (pid < 0) {
        snprintf(a->why, sizeof(a->why), "%s has no process: %s", e->what,
                 strerror(code));
    } else {
        bool in_time = listen_to(ends[0], begun + limit_ms, &a->text);
        judge(e, pid, in_time, limit_ms, a);
    }
    close(ends[0]);
    left_ms -= now_ms() - begun;
}

/* ddstore_bench: measures reads against references in the same run. Each part runs in a
 * process of its own, in a process group that is gone when the part is over or late. */
#include "bench.h"
#include "raw.h"

#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 60 /* of a part */

static const struct part {
    const char *name;
    void (*run)(const bench_context *ctx);
    const char *help;
} parts[] = {
    {"path1", bench_path1, "rows mapped from a member on this host, against memcpy"},
    {"path2", bench_path2, "rows read over libfabric, against bare fi_read"},
    {"path3", bench_path3, "rows read over TCP, against a plain socket"},
    {"threads", bench_threads, "two threads, against two threads of memcpy"},
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static volatile sig_atomic_t interrupted; /* the signal that came */

static void note_signal(int number)
{
    interrupted = number;
}

static const struct part *find(const char *name)
{
    for (size_t i = 0; i < PARTS; i++)
        if (strcmp(parts[i].name, name) == 0)
            return &parts[i];
    return NULL;
}

/* Loading libfabric may have set handlers of its own. */
static void reset_signals(void)
{
    static const int signals[] = {SIGINT,  SIGTERM, SIGHUP,  SIGILL,
                                  SIGABRT, SIGBUS,  SIGSEGV, SIGFPE};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        (void)signal(signals[i], SIG_DFL);
}

/* The first two CPUs that this process may use. */
static void choose_cpus(bench_context *ctx)
{
    cpu_set_t set;
    ctx->cpu = ctx->peer_cpu = -1;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE && ctx->peer_cpu < 0; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &set))
            continue;
        if (ctx->cpu < 0)
            ctx->cpu = cpu;
        else
            ctx->peer_cpu = cpu;
    }
    if (ctx->peer_cpu < 0)
        ctx->peer_cpu = ctx->cpu;
}

/* -- the directory where members meet -- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void remove_dir(const char *dir)
{
    (void)nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void make_dir(char *dir, size_t room)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, room, "%s/ddstore-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        bench_die("can't make %s: %s", dir, strerror(errno));
}

/* -- a part in a process of its own -- */

static void run_here(const struct part *part, bench_context *ctx)
{
    static const char *const kept[] = {"DDSTORE_LOG", "DDSTORE_LIBFABRIC"};
    extern char **environ;
    char name[128];
    for (char **at = environ; *at;) { /* the user's settings are not the benchmark's */
        size_t n = strcspn(*at, "=");
        bool keep = n >= sizeof(name) || (strncmp(*at, "DDSTORE_", 8) != 0 &&
                                          strncmp(*at, "FABRIC_IFACE=", 13) != 0);
        for (size_t i = 0; i < 2 && !keep; i++)
            keep = strlen(kept[i]) == n && strncmp(*at, kept[i], n) == 0;
        if (keep) {
            at++;
            continue;
        }
        memcpy(name, *at, n);
        name[n] = '\0';
        unsetenv(name);
        at = environ;
    }
    bench_pin(ctx->cpu);
    part->run(ctx);
}

/* The exit code of a part; -1: it has to be ended. */
static int wait_for(pid_t pid)
{
    int status;
    for (int ms = 0; ms < LIMIT_S * 1000; ms += 10) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (interrupted)
            return -1;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    fprintf(stderr, "ddstore_bench: a part took longer than %d s\n", LIMIT_S);
    return -1;
}

static _Noreturn void be_part(const struct part *part, bench_context *ctx, pid_t parent)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    reset_signals();
    if (getppid() != parent)
        _exit(1);
    run_here(part, ctx);
    fflush(stdout);
    _exit(0); /* nothing that a network library's destructors could trip over */
}

static int run_part(const struct part *part, bench_context *ctx)
{
    char dir[512];
    pid_t parent = getpid();
    make_dir(dir, sizeof(dir));
    ctx->dir = dir;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        bench_die("can't start a process: %s", strerror(errno));
    if (pid == 0)
        be_part(part, ctx, parent);
    (void)setpgid(pid, pid);
    int rc = wait_for(pid);
    (void)kill(-pid, SIGKILL);
    if (rc < 0)
        (void)waitpid(pid, NULL, 0);
    remove_dir(dir);
    if (interrupted)
        exit(128 + interrupted);
    if (rc != 0)
        fprintf(stderr, "ddstore_bench: part %s failed (%d)\n", part->name, rc);
    return rc;
}

static int run_all_of(const struct part *part, bench_context *ctx)
{
    size_t n = 0;
    int rc = 0;
    if (part->run != bench_path2)
        return run_part(part, ctx);
    const char *const *names = raw_providers(&n);
    if (n == 0)
        bench_print_skipped(ctx, part->name, "fi_read", "built without libfabric");
    for (size_t i = 0; i < n; i++) {
        ctx->provider = names[i];
        int one = run_part(part, ctx);
        rc = rc ? rc : one;
    }
    return rc;
}

static int usage(FILE *out, int code)
{
    fputs(
        "usage: ddstore_bench [--quick] [--json] [--no-pin] [PART]...\n"
        "Measures reads against references in the same run; all parts unless named:\n",
        out);
    for (size_t i = 0; i < PARTS; i++)
        fprintf(out, "  %-8s %s\n", parts[i].name, parts[i].help);
    fputs("--json prints a JSON object a line; --no-pin leaves processes on any CPU.\n",
          out);
    return code;
}

int main(int argc, char **argv)
{
    char program[4096];
    bench_context ctx = {0};
    bool chosen[PARTS] = {false}, any = false, pin = true;
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    reset_signals();
    if (argc > 2 && strcmp(argv[1], "--peer") == 0)
        return bench_peer_main(argc - 2, argv + 2);
    if (n <= 0)
        bench_die("/proc is not there");
    program[n] = '\0';
    ctx.program = program;
    for (int i = 1; i < argc; i++) {
        const struct part *part = find(argv[i]);
        if (part)
            any = chosen[part - parts] = true;
        else if (strcmp(argv[i], "--quick") == 0)
            ctx.quick = true;
        else if (strcmp(argv[i], "--json") == 0)
            ctx.json = true;
        else if (strcmp(argv[i], "--no-pin") == 0)
            pin = false;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout, 0);
        else
            return usage(stderr, 2);
    }
    (void)signal(SIGINT, note_signal);
    (void)signal(SIGTERM, note_signal);
    (void)signal(SIGHUP, note_signal);
    choose_cpus(&ctx);
    if (!pin)
        ctx.cpu = ctx.peer_cpu = -1;
    int rc = 0;
    for (size_t i = 0; i < PARTS; i++)
        if (!any || chosen[i]) {
            int one = run_all_of(&parts[i], &ctx);
            rc = rc ? rc : one;
        }
    return rc ? 1 : 0;
}

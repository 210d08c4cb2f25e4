/* Plays the programs of Slurm that load the plugin: slurmstepd for a step, and the one
 * that ends a job. It is linked with the plugin's own sources, prints what the plugin
 * did, and on request makes what the plugin calls crash, hang or fail.
 *
 *   spank_host step|epilog [--arg PLUGSTACK] [--option NAME[=VALUE]] [--env NAME=VALUE]
 *     [--task NAME=VALUE] [--job N] [--step N] [--node N] [--uid N] [--mishap WHICH]
 *     [--busy THREADS]
 *
 * --task: a variable that Slurm sets only in the task. Output: lines rc CALL VALUE,
 * log TEXT, env NAME=VALUE, ms TOTAL, left DESCRIPTORS CHILDREN. */
#include "ddstore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static struct {
    bool epilog;
    uint32_t job, step, node;
    uid_t uid;
    unsigned busy;
    const char *mishap;
    char *args[MOST], *options[MOST], *task[MOST];
    int n_args, n_options, n_task;
} host = {.job = 7, .uid = 65534, .mishap = ""};

struct variable {
    char *name, *value;
    struct variable *next;
};
static struct variable *variables;
static struct spank_option *registered[MOST];
static int n_registered;
static double total_ms;

static void die(const char *why)
{
    fprintf(stderr, "spank_host: %s\n", why);
    exit(2);
}

/* ---- what Slurm has for plugins ---- */

static struct variable *find(const char *name)
{
    for (struct variable *v = variables; v; v = v->next)
        if (v->value && strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

static void not_in_epilog(void)
{
    if (host.epilog)
        abort(); /* as Slurm 22.05 does */
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buf, int len)
{
    (void)spank;
    not_in_epilog();
    const struct variable *v = find(name);
    if (!v)
        return ESPANK_ENV_NOEXIST;
    snprintf(buf, (size_t)len, "%s", v->value);
    return strlen(v->value) < (size_t)len ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
    (void)spank;
    not_in_epilog();
    struct variable *v = find(name);
    if (v) {
        free(v->value);
        v->value = NULL;
    }
    return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *val, int over)
{
    if (find(name) && !over)
        return ESPANK_ENV_EXISTS;
    spank_unsetenv(spank, name);
    struct variable *v = calloc(1, sizeof(*v));
    if (!v)
        die("no memory");
    v->name = strdup(name);
    v->value = strdup(val);
    v->next = variables;
    variables = v;
    return ESPANK_SUCCESS;
}

int spank_remote(spank_t spank)
{
    (void)spank;
    not_in_epilog();
    return 1;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *opt)
{
    (void)spank;
    registered[n_registered++] = opt;
    return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
    static gid_t groups[2];
    (void)spank;
    va_list args;
    va_start(args, item);
    void *out = va_arg(args, void *);
    groups[0] = groups[1] = host.uid;
    switch (item) {
    case S_JOB_ID:
        *(uint32_t *)out = host.job;
        break;
    case S_JOB_STEPID:
        *(uint32_t *)out = host.step;
        break;
    case S_JOB_NODEID:
        *(uint32_t *)out = host.node;
        break;
    case S_JOB_UID:
        *(uid_t *)out = host.uid;
        break;
    case S_JOB_GID:
        *(gid_t *)out = host.uid;
        break;
    case S_JOB_SUPPLEMENTARY_GIDS:
        *(gid_t **)out = groups;
        *va_arg(args, int *) = 2;
        break;
    case S_SLURM_RESTART_COUNT:
        *(uint32_t *)out = 0; /* as 22.05 has it */
        break;
    default:
        die("an item that isn't known here");
    }
    va_end(args);
    return ESPANK_SUCCESS;
}

static void log_line(const char *format, va_list args)
{
    printf("log ");
    vprintf(format, args);
    printf("\n");
}

void slurm_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(format, args);
    va_end(args);
}

void slurm_debug(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(format, args);
    va_end(args);
}

/* ---- mishaps ---- */

static bool happens(const char *which)
{
    return strcmp(host.mishap, which) == 0;
}

static void crash_or_hang(const char *where)
{
    char name[64];
    snprintf(name, sizeof(name), "crash-%s", where);
    if (happens(name))
        raise(SIGSEGV);
    snprintf(name, sizeof(name), "hang-%s", where);
    if (happens(name))
        sleep(60);
}

static int count_descriptors(void)
{
    int n = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all))
        n++;
    if (all)
        closedir(all);
    return n;
}

static int long_map(ddstore_nic_map **out, ddstore_error *err)
{
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        die("no memory");
    for (int nic = 0; nic < 2; nic++) {
        fprintf(file, "%shsn%d=%d", nic ? ";" : "", nic, nic);
        for (int cpu = nic + 2; cpu < 8192; cpu += 2)
            fprintf(file, ",%d", cpu);
    }
    fclose(file);
    int rc = ddstore_nic_map_parse(text, out, err);
    free(text);
    return rc;
}

int __real_ddstore_nic_map_discover(const char *, ddstore_nic_map **, ddstore_error *);
int __wrap_ddstore_nic_map_discover(const char *, ddstore_nic_map **, ddstore_error *);
int __wrap_ddstore_nic_map_discover(const char *pattern, ddstore_nic_map **out,
                                    ddstore_error *err)
{
    crash_or_hang("map");
    if (happens("slow-map")) {
        int fd = open(getenv("COUNT"), O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (write(fd, "x", 1) == 1)
            usleep(300000);
        close(fd);
    } else if (happens("long-map")) {
        return long_map(out, err);
    } else if (happens("look-around")) {
        sigset_t blocked;
        sigprocmask(SIG_BLOCK, NULL, &blocked);
        snprintf(err->message, sizeof(err->message),
                 "descriptors %d, uid %d, handler %d, blocked %d", count_descriptors(),
                 (int)geteuid(), signal(SIGCHLD, SIG_DFL) != SIG_DFL,
                 sigismember(&blocked, SIGTERM));
        return DDSTORE_ESYS;
    }
    return __real_ddstore_nic_map_discover(pattern, out, err);
}

/* Nothing is done in a user's directory but as that user, for good. */
static void check_user(void)
{
    uid_t uids[3];
    gid_t gids[3], groups[8] = {0};
    getresuid(&uids[0], &uids[1], &uids[2]);
    getresgid(&gids[0], &gids[1], &gids[2]);
    int n = getgroups(8, groups);
    for (int i = 0; i < 3; i++)
        if (uids[i] != host.uid || gids[i] != (gid_t)host.uid)
            abort();
    for (int i = 0; i < n; i++)
        if (groups[i] != (gid_t)host.uid)
            abort();
}

int __real_unlinkat(int, const char *, int);
int __wrap_unlinkat(int, const char *, int);
int __wrap_unlinkat(int fd, const char *name, int flags)
{
    if (strncmp(name, ".new-", 5) != 0 && strncmp(name, "job-", 4) != 0) {
        check_user();
        crash_or_hang("remove");
    }
    return __real_unlinkat(fd, name, flags);
}

int __real_mkdirat(int, const char *, mode_t);
int __wrap_mkdirat(int, const char *, mode_t);
int __wrap_mkdirat(int fd, const char *name, mode_t mode)
{
    check_user();
    crash_or_hang("make");
    if (happens("squash")) { /* made, but somebody else's */
        int rc = __real_mkdirat(fd, name, mode);
        return rc || geteuid() != 0 ? rc : fchownat(fd, name, 65533, 65533, 0);
    }
    return __real_mkdirat(fd, name, mode);
}

int __real_fsync(int);
int __wrap_fsync(int);
int __wrap_fsync(int fd)
{
    if (happens("full")) {
        errno = ENOSPC;
        return -1;
    }
    return __real_fsync(fd);
}

/* ---- a step ---- */

static void call(const char *name, spank_f *f)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int rc = f(NULL, host.n_args, host.args);
    clock_gettime(CLOCK_MONOTONIC, &b);
    total_ms +=
        (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    printf("rc %s %d\n", name, rc);
}

static void use_option(const struct spank_option *option, const char *given)
{
    size_t n = strlen(option->name);
    if (strncmp(given, option->name, n) == 0 && (!given[n] || given[n] == '='))
        printf("rc --%s %d\n", option->name,
               option->cb(option->val, given[n] ? given + n + 1 : NULL, 1));
}

static void use_options(void)
{
    for (int i = 0; i < host.n_options; i++)
        for (int k = 0; k < n_registered; k++)
            use_option(registered[k], host.options[i]);
}

/* A task is a process of its own, with the user for good. */
static void be_task(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid > 0) {
        waitpid(pid, NULL, 0);
        _exit(0); /* the task has told all */
    }
    if (seteuid(0) || setresuid(host.uid, host.uid, host.uid))
        die("can't become the user");
    for (int i = 0; i < host.n_task; i++) {
        char *value = strchr(host.task[i], '=');
        *value = '\0';
        spank_setenv(NULL, host.task[i], value + 1, 1);
    }
    call("task_init", slurm_spank_task_init);
}

static void be_step(void)
{
    call("init", slurm_spank_init);
    use_options();
    call("init_post_opt", slurm_spank_init_post_opt);
    const gid_t groups[] = {host.uid};
    if (setgroups(1, groups) || setegid(host.uid) || seteuid(host.uid))
        die("can't act as the user");
    call("user_init", slurm_spank_user_init);
    be_task();
}

/* ---- the program ---- */

static void on_child(int number)
{
    (void)number; /* slurmstepd has one too */
}

static void *be_busy(void *arg)
{
    for (;; usleep(50))
        free(malloc((size_t)(uintptr_t)arg));
    return NULL;
}

static void read_words(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i += 2) {
        char *word = argv[i] + 2, *value = argv[i + 1];
        if (strcmp(word, "arg") == 0)
            host.args[host.n_args++] = value;
        else if (strcmp(word, "option") == 0)
            host.options[host.n_options++] = value;
        else if (strcmp(word, "task") == 0)
            host.task[host.n_task++] = value;
        else if (strcmp(word, "mishap") == 0)
            host.mishap = value;
        else if (strcmp(word, "job") == 0)
            host.job = (uint32_t)strtoul(value, NULL, 0);
        else if (strcmp(word, "step") == 0)
            host.step = (uint32_t)strtoul(value, NULL, 0);
        else if (strcmp(word, "node") == 0)
            host.node = (uint32_t)strtoul(value, NULL, 0);
        else if (strcmp(word, "uid") == 0)
            host.uid = (uid_t)strtoul(value, NULL, 0);
        else if (strcmp(word, "busy") == 0)
            host.busy = (unsigned)strtoul(value, NULL, 0);
        else if (strcmp(word, "env") == 0 && strchr(value, '=')) {
            char *name = strndup(value, strcspn(value, "="));
            spank_setenv(NULL, name, strchr(value, '=') + 1, 1);
            free(name);
        } else
            die(argv[i]);
    }
}

int main(int argc, char **argv)
{
    pthread_t thread;
    const struct sigaction action = {.sa_handler = on_child};
    if (argc < 2)
        die("step or epilog?");
    read_words(argc, argv);
    const gid_t groups[] = {0, 4}; /* root's, which no user should come to */
    if (setgroups(2, groups))
        die("must be root");
    host.epilog = strcmp(argv[1], "epilog") == 0;
    sigaction(SIGCHLD, &action, NULL);
    if (happens("ignore-children"))
        signal(SIGCHLD, SIG_IGN); /* then nobody can wait for them */
    for (uintptr_t i = 0; i < host.busy; i++)
        pthread_create(&thread, NULL, be_busy, (void *)(1000 + i * 100000));
    int before = count_descriptors();
    if (host.epilog)
        call("job_epilog", slurm_spank_job_epilog);
    else
        be_step();
    int child = waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD;
    for (const struct variable *v = variables; v; v = v->next)
        if (v->value)
            printf("env %s=%s\n", v->name, v->value);
    printf("ms %.0f\nleft %d %d\n", total_ms, count_descriptors() - before, child);
    fflush(stdout);
    _exit(0);
}

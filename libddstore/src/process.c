/* Identity of processes: whether one on this host still lives, told by pid and start
 * time. */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

unsigned ddstore__fork_generation;

static void count_fork(void)
{
    ddstore__fork_generation++;
}

/* Before anything is opened, and so before the handlers of what is. */
__attribute__((constructor)) static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ddstore__process here; /* all but pid and start time */

static size_t read_small(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, out, bytes - 1);
    close(fd);
    out[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

/* Field 22 of /proc/PID/stat, counted after the command's closing parenthesis. 0: gone,
 * or a zombie, whose memory and sockets are gone too. */
static uint64_t start_time(uint32_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    if (!read_small(path, text, sizeof(text)))
        return 0;
    char *p = strrchr(text, ')');
    if (!p || !p[1] || p[2] == 'Z' || p[2] == 'X')
        return 0;
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

static uint64_t ns_of_self(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static uint64_t pid_ns_of_self(void)
{
    return ns_of_self("/proc/self/ns/pid");
}

static void find_here(void)
{
    char text[64];
    if (read_small("/proc/sys/kernel/random/boot_id", text, sizeof(text))) {
        int n = 0;
        for (const char *p = text; *p && n < 32; p++) {
            int digit = *p >= '0' && *p <= '9'   ? *p - '0'
                        : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10
                                                 : -1;
            if (digit < 0)
                continue;
            here.boot_id[n / 2] = (uint8_t)(here.boot_id[n / 2] << 4 | digit);
            n++;
        }
    }
    if (gethostname(here.host, sizeof(here.host) - 1) != 0)
        strcpy(here.host, "?");
}

void ddstore__process_self(ddstore__process *out)
{
    pthread_once(&once, find_here);
    *out = here;
    out->pid = (uint32_t)getpid();
    out->pid_ns = pid_ns_of_self();
    out->net_ns = ns_of_self("/proc/self/ns/net");
    out->start_time = start_time(out->pid);
}

int ddstore__process_alive(const ddstore__process *p)
{
    pthread_once(&once, find_here);
    if (memcmp(p->boot_id, here.boot_id, sizeof(here.boot_id)) != 0 ||
        p->pid_ns != pid_ns_of_self())
        return -1;
    if (kill((pid_t)p->pid, 0) != 0 && errno == ESRCH)
        return 0;
    uint64_t since = start_time(p->pid);
    return since != 0 && since == p->start_time;
}

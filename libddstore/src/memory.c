/* How much memory may still be committed: a memfd has no limit of its own, and the
 * kernel answers an excess by killing, so the figures are checked before. */
#include "memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define RESERVE 20 /* one part in 20 stays free */

static bool read_text(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t used = 0;
    ssize_t got;
    while (used < bytes - 1 && (got = read(fd, out + used, bytes - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    out[used] = '\0';
    return used > 0;
}

/* The number behind `key` at the start of a line of text. */
static bool find_number(const char *text, const char *key, uint64_t *out)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':')) {
            *out = strtoull(line + n + 1, NULL, 10);
            return true;
        }
        if (!*line)
            break;
    }
    return false;
}

static void bound_by(ddstore__memory *m, uint64_t limit, uint64_t used,
                     const char *name)
{
    uint64_t keep = limit / RESERVE;
    uint64_t rest = limit > used ? limit - used : 0;
    rest = rest > keep ? rest - keep : 0;
    if (rest >= m->free)
        return;
    m->free = rest;
    m->limit = limit;
    snprintf(m->bound, sizeof(m->bound), "%s", name);
}

/* One control group directory; its page cache that can be dropped counts as free. */
static void bound_by_group(ddstore__memory *m, const char *dir, bool v2)
{
    char path[700], text[8192];
    uint64_t limit, used, cache = 0;
    snprintf(path, sizeof(path), "%s/%s", dir,
             v2 ? "memory.max" : "memory.limit_in_bytes");
    if (!read_text(path, text, sizeof(text)) || *text < '0' || *text > '9')
        return; /* "max": no limit */
    limit = strtoull(text, NULL, 10);
    snprintf(path, sizeof(path), "%s/%s", dir,
             v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!read_text(path, text, sizeof(text)))
        return;
    used = strtoull(text, NULL, 10);
    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    if (read_text(path, text, sizeof(text)))
        (void)find_number(text, v2 ? "inactive_file" : "total_inactive_file", &cache);
    bound_by(m, limit, used > cache ? used - cache : 0, dir);
}

/* The group of this process and all above it. */
static void bound_by_groups(ddstore__memory *m, const char *root, char *group, bool v2)
{
    char dir[600];
    for (;;) {
        snprintf(dir, sizeof(dir), "%s%s", root, group);
        bound_by_group(m, dir, v2);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static void read_groups(ddstore__memory *m)
{
    char text[4096], *save = NULL;
    if (!read_text("/proc/self/cgroup", text, sizeof(text)))
        return;
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        char *names = strchr(line, ':');
        char *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        if (strlen(group) > 400)
            continue;
        if (names[1] == '\0')
            bound_by_groups(m, "/sys/fs/cgroup", group, true);
        else if (strcmp(names + 1, "memory") == 0)
            bound_by_groups(m, "/sys/fs/cgroup/memory", group, false);
    }
}

void ddstore__memory_read(ddstore__memory *out)
{
    char text[4096];
    uint64_t total = 0, available = 0;
    *out =
        (ddstore__memory){.free = UINT64_MAX, .limit = UINT64_MAX, .bound = "nothing"};
    if (read_text("/proc/meminfo", text, sizeof(text)) &&
        find_number(text, "MemTotal", &total) &&
        find_number(text, "MemAvailable", &available))
        bound_by(out, total * 1024, (total - available) * 1024, "this machine");
    read_groups(out);
}

int ddstore__memory_check(uint64_t need, const char *what, ddstore_error *err)
{
    ddstore__memory m;
    ddstore__memory_read(&m);
    if (need <= m.free)
        return DDSTORE_OK;
    return ddstore__fail(
        err, DDSTORE_ENOMEM,
        "%s needs %.1f MiB of memory and %.1f MiB are free (limit %.1f MiB "
        "of %s, 5 %% kept in reserve): use more nodes, fewer processes a "
        "node or smaller data",
        what, (double)need / 1048576, (double)m.free / 1048576,
        (double)m.limit / 1048576, m.bound);
}

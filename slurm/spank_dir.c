/* The directory of a job, made, found and removed as its user. */
#include "spank_parts.h"

#include "ddstore.h"
#include "rendezvous/rendezvous.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define DEEPEST  16
#define ROUNDS   8

static void say_error(int out, const ddstore__spank_dir *d, const char *name,
                      const char *reason)
{
    (void)ddstore__lines_put(out, "error", "the job's directory %.500s/%s %s", d->base,
                             name, reason);
}

void ddstore__jobdir_name(uint32_t job, uint32_t restart, char *out)
{
    if (restart)
        snprintf(out, DDSTORE__SPANK_NAME, "%u.%u", job, restart);
    else
        snprintf(out, DDSTORE__SPANK_NAME, "%u", job);
}

bool ddstore__jobdir_parse(const char *name, uint32_t job, uint32_t *restart)
{
    char plain[DDSTORE__SPANK_NAME], again[DDSTORE__SPANK_NAME];
    uint64_t n = 0;
    ddstore__jobdir_name(job, 0, plain);
    size_t bytes = strlen(plain);
    if (strncmp(name, plain, bytes) != 0)
        return false;
    if (name[bytes] && (name[bytes] != '.' ||
                        !ddstore__lines_number(name + bytes + 1, UINT32_MAX, &n)))
        return false;
    *restart = (uint32_t)n;
    ddstore__jobdir_name(job, *restart, again);
    return strcmp(name, again) == 0;
}

/* ---- making ---- */

void ddstore__jobdir_marker(const ddstore__spank_dir *d, char *out, size_t bytes)
{
    snprintf(out, bytes, "job %u.%u of uid %u\n", d->job, d->restart,
             (unsigned)geteuid());
}

/* Whether it is one that only its user may write; else reason. */
static bool is_own(int fd, char *reason, size_t bytes)
{
    struct stat st;
    if (fstat(fd, &st)) {
        snprintf(reason, bytes, "can't be looked at: %s", strerror(errno));
    } else if (st.st_uid != geteuid()) {
        snprintf(reason, bytes, "belongs to another user (uid %u)",
                 (unsigned)st.st_uid);
    } else if (st.st_mode & 022) {
        snprintf(reason, bytes, "may be written by others (mode %o)",
                 (unsigned)st.st_mode & 07777);
    } else {
        return true;
    }
    return false;
}

static bool leave_marker(int fd, const ddstore__spank_dir *d)
{
    char text[128];
    ddstore__jobdir_marker(d, text, sizeof(text));
    int marker = openat(fd, DDSTORE__SPANK_MARKER,
                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (marker < 0)
        return false;
    ssize_t n = write(marker, text, strlen(text));
    int failed = close(marker); /* a network file system may tell only now */
    return n == (ssize_t)strlen(text) && !failed;
}

static void make_in(int base, const ddstore__spank_dir *d, const char *name, int out)
{
    char reason[200] = "";
    bool made = mkdirat(base, name, 0700) == 0;
    if (!made && errno != EEXIST) {
        snprintf(reason, sizeof(reason), "can't be made: %s", strerror(errno));
        say_error(out, d, name, reason);
        return;
    }
    int fd = openat(base, name, OPEN_DIR);
    if (fd < 0) {
        bool other = errno == ELOOP || errno == ENOTDIR;
        snprintf(reason, sizeof(reason), "%s%s",
                 other ? "is no directory but a symbolic link or a file"
                       : "can't be opened: ",
                 other ? "" : strerror(errno));
    } else if (is_own(fd, reason, sizeof(reason)) && made && !leave_marker(fd, d)) {
        (void)unlinkat(fd, DDSTORE__SPANK_MARKER, 0);
        snprintf(reason, sizeof(reason), "takes no files: %s", strerror(errno));
    }
    if (fd >= 0)
        close(fd);
    if (!reason[0]) {
        (void)ddstore__lines_put(out, "dir", "%s/%s", d->base, name);
        return;
    }
    if (made)
        (void)unlinkat(base, name, AT_REMOVEDIR);
    say_error(out, d, name, reason);
}

void ddstore__jobdir_make(void *arg, int out)
{
    const ddstore__spank_dir *d = arg;
    char why[DDSTORE__SPANK_REASON], name[DDSTORE__SPANK_NAME];
    ddstore__jobdir_name(d->job, d->restart, name);
    int base = ddstore__path_open(d->base, true, why);
    if (base < 0) {
        (void)ddstore__lines_put(out, "error", "the job has no directory: %s", why);
        return;
    }
    make_in(base, d, name, out);
    close(base);
}

/* ---- joining ---- */

/* The latest run's that is there. */
static uint32_t newest(int base, uint32_t job)
{
    uint32_t best = 0, restart;
    int fd = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *all = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *e; all && (e = readdir(all));)
        if (ddstore__jobdir_parse(e->d_name, job, &restart) && restart > best)
            best = restart;
    if (all)
        closedir(all);
    else if (fd >= 0)
        close(fd);
    return best;
}

/* Members of the core group, by its claims; 0: they don't tell. */
static int core_size(const ddstore__spank_dir *d, const char *path)
{
    ddstore__claim *claims = NULL;
    size_t n = 0;
    char begin[64];
    int size = 0;
    int used =
        snprintf(begin, sizeof(begin), "slurm:%u:%lld:", d->job, (long long)d->step);
    if (ddstore__claims_read(path, &claims, &n, NULL))
        return 0;
    for (size_t i = 0; i < n && size >= 0; i++) {
        if (d->step >= 0 && strncmp(claims[i].identity, begin, (size_t)used) != 0)
            continue;
        size = size == 0 || size == claims[i].size ? claims[i].size : -1;
    }
    ddstore__claims_free(claims, n);
    return size > 0 ? size : 0;
}

void ddstore__jobdir_join(void *arg, int out)
{
    const ddstore__spank_dir *d = arg;
    char why[DDSTORE__SPANK_REASON], name[DDSTORE__SPANK_NAME];
    char path[DDSTORE__SPANK_PATH];
    struct stat st;
    int base = ddstore__path_open(d->base, false, why);
    ddstore__jobdir_name(d->job, base < 0 ? 0 : newest(base, d->job), name);
    bool there = base >= 0 && fstatat(base, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (base >= 0)
        close(base);
    if (there && st.st_uid != geteuid()) {
        snprintf(why, sizeof(why), "to join belongs to another user (uid %u)",
                 (unsigned)st.st_uid);
        say_error(out, d, name, why);
        return;
    }
    snprintf(path, sizeof(path), "%s/%s", d->base, name);
    (void)ddstore__lines_put(out, "dir", "%s", path);
    int size = there ? core_size(d, path) : 0;
    if (size)
        (void)ddstore__lines_put(out, "core", "%d", size);
}

/* ---- removing ---- */

/* Whether user_init has left its marker there. */
static bool has_marker(int fd, const ddstore__spank_dir *d)
{
    char wanted[128], text[128] = "";
    struct stat st;
    ddstore__jobdir_marker(d, wanted, sizeof(wanted));
    int marker = openat(fd, DDSTORE__SPANK_MARKER,
                        O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (marker < 0)
        return false;
    bool good = fstat(marker, &st) == 0 && S_ISREG(st.st_mode) &&
                st.st_uid == geteuid() && read(marker, text, sizeof(text) - 1) > 0 &&
                strcmp(text, wanted) == 0;
    close(marker);
    return good;
}

static bool empty(DIR *all, dev_t device, int depth);

/* Others may be at the same. */
static bool remove_below(int fd, const char *name, dev_t device, int depth)
{
    struct stat st;
    if (unlinkat(fd, name, 0) == 0 || errno == ENOENT)
        return true;
    int below = openat(fd, name, OPEN_DIR);
    if (below < 0)
        return errno == ENOENT;
    DIR *all = NULL;
    if (fstat(below, &st) == 0 && st.st_dev == device && depth < DEEPEST)
        all = fdopendir(below);
    bool good = all && empty(all, device, depth + 1);
    if (all)
        closedir(all);
    else
        close(below);
    return good && (unlinkat(fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT);
}

/* Removes what is in a directory, on this file system, but the marker: what is left
 * after a failure is still known as the plugin's. */
static bool empty(DIR *all, dev_t device, int depth)
{
    bool found = true;
    /* A reader of a directory that changes may miss something. */
    for (int round = 0; found && round < ROUNDS; round++) {
        found = false;
        rewinddir(all);
        for (struct dirent *e; (e = readdir(all));) {
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                (depth == 0 && strcmp(e->d_name, DDSTORE__SPANK_MARKER) == 0))
                continue;
            found = true;
            if (!remove_below(dirfd(all), e->d_name, device, depth))
                return false;
        }
    }
    return true;
}

/* Takes fd. */
static bool remove_all(int base, const char *name, int fd, dev_t device)
{
    DIR *all = fdopendir(fd);
    bool good = all && empty(all, device, 0) &&
                (unlinkat(fd, DDSTORE__SPANK_MARKER, 0) == 0 || errno == ENOENT);
    int code = errno;
    if (all)
        closedir(all);
    else
        close(fd);
    errno = code;
    return good && (unlinkat(base, name, AT_REMOVEDIR) == 0 || errno == ENOENT);
}

static void remove_in(int base, const ddstore__spank_dir *d, const char *name, int out)
{
    struct stat st;
    char reason[200];
    int fd = openat(base, name, OPEN_DIR);
    if (fd < 0) {
        if (errno != ENOENT)
            say_error(out, d, name, "is not removed: it is no directory any more");
        return;
    }
    if (fstat(fd, &st) || st.st_uid != geteuid() || !has_marker(fd, d)) {
        say_error(out, d, name, "is not removed: it is not the one that was made");
        close(fd);
        return;
    }
    if (remove_all(base, name, fd, st.st_dev))
        return;
    snprintf(reason, sizeof(reason), "can't be removed: %s", strerror(errno));
    say_error(out, d, name, reason);
}

void ddstore__jobdir_remove(void *arg, int out)
{
    const ddstore__spank_dir *d = arg;
    char why[DDSTORE__SPANK_REASON], name[DDSTORE__SPANK_NAME];
    ddstore__jobdir_name(d->job, d->restart, name);
    int base = ddstore__path_open(d->base, false, why);
    if (base == -ENOENT)
        return;
    if (base < 0) {
        (void)ddstore__lines_put(out, "error", "a job's directory is not removed: %s",
                                 why);
        return;
    }
    remove_in(base, d, name, out);
    close(base);
}

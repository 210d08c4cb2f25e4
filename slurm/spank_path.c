/* Opening a directory step by step, so that nothing which another user has put there
 * leads out of where the site and the user mean. */
#include "spank_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS 40

struct walk {
    const char *path; /* as it was given */
    char rest[2 * DDSTORE__SPANK_PATH];
    int dir;
    int links;
    bool make;
    char *why;
};

static int fail(struct walk *w, int code, const char *part, const char *reason)
{
    snprintf(w->why, DDSTORE__SPANK_REASON, "%.400s: %s%.200s%s%s", w->path,
             part ? "'" : "", part ? part : "", part ? "' " : "", reason);
    return -code;
}

/* Puts where a link leads in front of what is left. */
static int follow(struct walk *w, const char *part, int link)
{
    char target[DDSTORE__SPANK_PATH];
    struct stat st, around;
    if (fstat(link, &st) || fstat(w->dir, &around))
        return fail(w, errno, part, strerror(errno));
    if (!S_ISLNK(st.st_mode))
        return fail(w, ENOTDIR, part, "is not a directory");
    if (st.st_uid != 0 && st.st_uid != geteuid() && st.st_uid != around.st_uid)
        return fail(w, EACCES, part, "is a symbolic link of another user");
    ssize_t n = readlinkat(link, "", target, sizeof(target));
    if (n <= 0 || n == (ssize_t)sizeof(target) || ++w->links > LINKS)
        return fail(w, ELOOP, part, "is a symbolic link that can't be followed");
    size_t bytes = strlen(w->rest) + 1;
    if (bytes + (size_t)n + 1 > sizeof(w->rest))
        return fail(w, ENAMETOOLONG, part, "leads to too long a path");
    memmove(w->rest + n + 1, w->rest, bytes);
    memcpy(w->rest, target, (size_t)n);
    w->rest[n] = '/';
    if (target[0] != '/')
        return 0;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return fail(w, errno, NULL, strerror(errno));
    close(w->dir);
    w->dir = root;
    return 0;
}

/* Whether another user may have put a directory where everybody can, as in /tmp. */
static bool is_planted(int dir, int next)
{
    struct stat st, around;
    if (fstat(next, &st) || fstat(dir, &around))
        return true;
    return (around.st_mode & S_IWOTH) && (around.st_mode & S_ISVTX) && st.st_uid != 0 &&
           st.st_uid != geteuid() && st.st_uid != around.st_uid;
}

static int step(struct walk *w, const char *part)
{
    const int how = O_PATH | O_NOFOLLOW | O_CLOEXEC;
    /* O_DIRECTORY: or what is mounted on demand isn't. */
    int next = openat(w->dir, part, how | O_DIRECTORY);
    if (next < 0 && errno == ENOENT && w->make) {
        if (mkdirat(w->dir, part, 0700) && errno != EEXIST)
            return fail(w, errno, part, strerror(errno));
        next = openat(w->dir, part, how | O_DIRECTORY);
    }
    if (next < 0 && (errno == ENOTDIR || errno == ELOOP)) {
        int link = openat(w->dir, part, how);
        if (link < 0)
            return fail(w, errno, part, strerror(errno));
        int rc = follow(w, part, link);
        close(link);
        return rc;
    }
    if (next < 0)
        return fail(w, errno, part, strerror(errno));
    if (is_planted(w->dir, next)) {
        close(next);
        return fail(w, EACCES, part, "is a directory of another user");
    }
    close(w->dir);
    w->dir = next;
    return 0;
}

int ddstore__path_open(const char *path, bool make, char *why)
{
    struct walk w = {.path = path, .make = make, .why = why};
    snprintf(w.rest, sizeof(w.rest), "%s", path);
    w.dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = w.dir < 0 ? fail(&w, errno, NULL, strerror(errno)) : 0;
    while (!rc) {
        char part[DDSTORE__SPANK_PATH];
        size_t begin = strspn(w.rest, "/"), n = strcspn(w.rest + begin, "/");
        if (n == 0)
            return w.dir;
        if (n >= sizeof(part)) {
            rc = fail(&w, ENAMETOOLONG, NULL, strerror(ENAMETOOLONG));
            break;
        }
        memcpy(part, w.rest + begin, n);
        part[n] = '\0';
        memmove(w.rest, w.rest + begin + n, strlen(w.rest + begin + n) + 1);
        rc = step(&w, part);
    }
    if (w.dir >= 0)
        close(w.dir);
    return rc;
}

/* Directories that members share: opening, checking who may write there, and what to
 * say when the file system refuses. */
#include "exchange_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

static const char *advice(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
        return " (free some space there or choose another directory)";
    case EROFS:
        return " (choose a directory that can be written)";
    case EACCES:
    case EPERM:
        return " (choose a directory of your own, or mend its permissions)";
    case ENAMETOOLONG:
        return " (choose a shorter path or name)";
    case ENOTDIR:
        return " (a part of the path is a file; correct the path)";
    case ENOENT:
        return " (the directory is missing; make it or correct the path)";
    case ELOOP:
        return " (a symbolic link stands there; remove it or choose another directory)";
    default:
        return "";
    }
}

int ddstore__dir_fail(const ddstore__dir *dir, const char *name, const char *what,
                      int errnum, ddstore_error *err)
{
    return ddstore__fail_errno(err, errnum, "can't %s %s%s%s%s", what, dir->path,
                               name ? "/" : "", name ? name : "", advice(errnum));
}

/* Whose directory it is and who may write there. */
static int check_dir(int fd, const char *path, bool below, ddstore_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return ddstore__fail_errno(err, errno, "can't examine the directory %s", path);
    bool sticky = (st.st_mode & S_ISVTX) != 0;
    if (st.st_uid != geteuid() && (below || st.st_uid != 0 || !sticky))
        return ddstore__fail(
            err, DDSTORE_ECONFLICT,
            "the directory %s belongs to user %u, not to this process's "
            "user %u: choose a directory of your own",
            path, (unsigned)st.st_uid, (unsigned)geteuid());
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
        return ddstore__fail(
            err, DDSTORE_ECONFLICT,
            "the directory %s may be written by its group or by others "
            "(mode %04o): chmod go-w it, or choose a directory of your "
            "own",
            path, (unsigned)(st.st_mode & 07777));
    return DDSTORE_OK;
}

static int check_writable(const char *path, ddstore_error *err)
{
    if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0)
        return DDSTORE_OK;
    return ddstore__fail_errno(err, errno, "the directory %s can't be written%s", path,
                               advice(errno));
}

static int make_dir(const char *path, ddstore_error *err)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return DDSTORE_OK;
    if (errno == ENOENT)
        return ddstore__fail_errno(
            err, errno,
            "can't make the directory %s (its parent directory is "
            "missing; make it or correct the path)",
            path);
    return ddstore__fail_errno(err, errno, "can't make the directory %s%s", path,
                               advice(errno));
}

/* The descriptor, or a negative code. */
static int open_or_make(const char *path, bool create, ddstore_error *err)
{
    for (int tries = 0;; tries++) {
        int fd = ddstore__fd_own(open(path, DIR_FLAGS));
        if (fd >= 0)
            return fd;
        if (errno == ENOENT && !create)
            return ddstore__fail(err, DDSTORE_EKEY, "there is no directory %s", path);
        /* A directory that another rank has just made may stay unseen for a while where
         * look-ups are cached. */
        if (errno != ENOENT && errno != ESTALE)
            return ddstore__fail_errno(err, errno, "can't open the directory %s%s",
                                       path, advice(errno));
        if (tries == 30)
            return ddstore__fail_errno(err, errno, "can't open the directory %s", path);
        int rc = make_dir(path, err);
        if (rc)
            return rc;
        if (tries)
            ddstore__sleep_ns(100 * DDSTORE__MS);
    }
}

static ddstore__dir *new_dir(const char *path, const char *name)
{
    ddstore__dir *dir = calloc(1, sizeof(*dir));
    if (!dir)
        return NULL;
    dir->fd = -1;
    dir->name = name ? strdup(name) : NULL;
    if ((name && !dir->name) ||
        asprintf(&dir->path, "%s%s%s", path, name ? "/" : "", name ? name : "") < 0) {
        free(dir->name);
        free(dir);
        return NULL;
    }
    return dir;
}

int ddstore__dir_open(const char *path, bool create, ddstore__dir **out,
                      ddstore_error *err)
{
    *out = NULL;
    if (!path || !*path)
        return ddstore__fail(err, DDSTORE_EINVAL, "no exchange directory is given");
    int fd = open_or_make(path, create, err);
    if (fd < 0)
        return fd;
    int rc = check_dir(fd, path, false, err);
    if (!rc && create)
        rc = check_writable(path, err);
    ddstore__dir *dir = rc ? NULL : new_dir(path, NULL);
    if (!dir) {
        ddstore__fd_close_file(fd);
        return rc ? rc
                  : ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a directory");
    }
    dir->fd = fd;
    *out = dir;
    return DDSTORE_OK;
}

ddstore__dir *ddstore__dir_sub(ddstore__dir *parent, const char *name)
{
    ddstore__dir *dir = new_dir(parent->path, name);
    if (dir)
        dir->parent = parent;
    return dir;
}

void ddstore__dir_close(ddstore__dir *dir)
{
    if (!dir)
        return;
    ddstore__fd_close_file(dir->fd);
    free(dir->path);
    free(dir->name);
    free(dir);
}

const char *ddstore__dir_path(const ddstore__dir *dir)
{
    return dir->path;
}

int ddstore__dir_fd(const ddstore__dir *dir)
{
    return dir->fd;
}

int ddstore__dir_enter(ddstore__dir *dir, bool create, ddstore_error *err)
{
    if (!dir->parent)
        return dir->fd;
    int at = dir->parent->fd;
    for (int tries = 0;; tries++) {
        int fd = ddstore__fd_own(openat(at, dir->name, DIR_FLAGS | O_NOFOLLOW));
        if (fd >= 0) {
            int rc = check_dir(fd, dir->path, true, err);
            if (rc)
                ddstore__fd_close_file(fd);
            return rc ? rc : fd;
        }
        if (errno != ENOENT && errno != ESTALE)
            return ddstore__dir_fail(dir, NULL, "open", errno, err);
        if (!create || tries == 30)
            return ddstore__fail(err, DDSTORE_EKEY, "there is no directory %s",
                                 dir->path);
        if (mkdirat(at, dir->name, 0700) != 0 && errno != EEXIST)
            return ddstore__dir_fail(dir, NULL, "make", errno, err);
        if (tries)
            ddstore__sleep_ns(10 * DDSTORE__MS);
    }
}

void ddstore__dir_leave(ddstore__dir *dir, int fd)
{
    if (dir->parent)
        ddstore__fd_close_file(fd);
}

void ddstore__dir_remove_self(ddstore__dir *dir)
{
    if (dir->parent)
        (void)!unlinkat(dir->parent->fd, dir->name, AT_REMOVEDIR);
}

/* Opening a directory asks the server whether it changed (close-to-open), and with that
 * its cached names, also those known to be missing, are judged anew. */
void ddstore__dir_refresh(ddstore__dir *dir)
{
    struct stat st;
    int at = dir->parent ? dir->parent->fd : dir->fd;
    int fd = ddstore__fd_own(openat(at, dir->parent ? dir->name : ".", DIR_FLAGS));
    if (fd >= 0)
        (void)!fstat(fd, &st);
    ddstore__fd_close_file(fd);
}

/* Reading, writing and listing the files of an exchange directory. */
#include "exchange_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* O_NONBLOCK: a planted pipe must not hold the reader up. */
#define READ_FLAGS (O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

atomic_ullong ddstore__dir_opens;

static int open_counted(int at, const char *name, int flags)
{
    atomic_fetch_add_explicit(&ddstore__dir_opens, 1, memory_order_relaxed);
    return ddstore__fd_own(openat(at, name, flags, 0600));
}

/* -- writing -- */

static int write_all(int fd, const struct iovec *parts, int n)
{
    for (int i = 0; i < n; i++) {
        const char *p = parts[i].iov_base;
        size_t left = parts[i].iov_len;
        while (left) {
            ssize_t put = write(fd, p, left < SSIZE_MAX ? left : SSIZE_MAX);
            if (put < 0 && errno == EINTR)
                continue;
            if (put <= 0)
                return put < 0 ? errno : ENOSPC;
            p += put;
            left -= (size_t)put;
        }
    }
    /* Some file systems can't; they have no cache that fsync would empty. */
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return errno;
    return 0;
}

/* A temporary file with those contents; its name in temp. Returns 0 or errno. */
static int write_temp(int at, char temp[64], const struct iovec *parts, int n)
{
    snprintf(temp, 64, ".tmp.%ld.%016llx", (long)getpid(),
             (unsigned long long)ddstore__random_u64());
    int fd =
        open_counted(at, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int errnum = write_all(fd, parts, n);
    ddstore__fd_close_file(fd);
    if (errnum)
        (void)!unlinkat(at, temp, 0);
    return errnum;
}

static int write_renamed(int at, const char *name, const struct iovec *parts, int n)
{
    char temp[64];
    int errnum = write_temp(at, temp, parts, n);
    if (errnum)
        return errnum;
    if (renameat(at, temp, at, name) == 0)
        return 0;
    errnum = errno;
    (void)!unlinkat(at, temp, 0);
    return errnum;
}

int ddstore__dir_write_parts(ddstore__dir *dir, const char *name,
                             const struct iovec *parts, int n, ddstore_error *err)
{
    /* The directory or the temporary file may be swept away under us: once more, then.
     */
    for (int tries = 0;; tries++) {
        int at = ddstore__dir_enter(dir, true, err);
        if (at < 0)
            return at;
        int errnum = write_renamed(at, name, parts, n);
        ddstore__dir_leave(dir, at);
        if (!errnum)
            return DDSTORE_OK;
        if ((errnum != ENOENT && errnum != ESTALE) || tries == 5)
            return ddstore__dir_fail(dir, name, "write", errnum, err);
    }
}

int ddstore__dir_write(ddstore__dir *dir, const char *name, const void *data,
                       size_t bytes, ddstore_error *err)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    return ddstore__dir_write_parts(dir, name, &part, 1, err);
}

/* O_EXCL in two calls, for file systems without hard links. */
static int create_exclusive(int at, const char *name, const struct iovec *part)
{
    int fd =
        open_counted(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int errnum = write_all(fd, part, 1);
    ddstore__fd_close_file(fd);
    if (errnum)
        (void)!unlinkat(at, name, 0);
    return errnum;
}

/* A link to a finished file appears under its name whole or not at all. */
static int create_linked(int at, const char *name, const struct iovec *part)
{
    char temp[64];
    struct stat st;
    int errnum = write_temp(at, temp, part, 1);
    if (errnum)
        return errnum;
    errnum = linkat(at, temp, at, name, 0) == 0 ? 0 : errno;
    /* A repeated request of a network file system may fail although the first one
     * linked. */
    if (errnum == EEXIST && fstatat(at, temp, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        st.st_nlink == 2)
        errnum = 0;
    (void)!unlinkat(at, temp, 0);
    return errnum;
}

int ddstore__dir_create(ddstore__dir *dir, const char *name, const void *data,
                        size_t bytes, ddstore_error *err)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    int at = ddstore__dir_enter(dir, true, err);
    if (at < 0)
        return at;
    int errnum = create_linked(at, name, &part);
    if (errnum == EPERM || errnum == ENOTSUP || errnum == ENOSYS)
        errnum = create_exclusive(at, name, &part);
    ddstore__dir_leave(dir, at);
    if (errnum == EEXIST)
        return ddstore__fail(err, DDSTORE_ECONFLICT, "%s/%s is there already",
                             dir->path, name);
    return errnum ? ddstore__dir_fail(dir, name, "create", errnum, err) : DDSTORE_OK;
}

/* -- reading -- */

static int check_file(const ddstore__dir *dir, const char *name, const struct stat *st,
                      ddstore_error *err)
{
    if (!S_ISREG(st->st_mode))
        return ddstore__fail(err, DDSTORE_ECONFLICT,
                             "%s/%s is not a regular file: remove it", dir->path, name);
    if (st->st_uid != geteuid())
        return ddstore__fail(err, DDSTORE_ECONFLICT,
                             "%s/%s belongs to user %u, not to this process's user %u: "
                             "remove it or choose a directory of your own",
                             dir->path, name, (unsigned)st->st_uid,
                             (unsigned)geteuid());
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return ddstore__fail(
            err, DDSTORE_ECONFLICT,
            "%s/%s may be written by its group or by others (mode %04o): "
            "remove it",
            dir->path, name, (unsigned)(st->st_mode & 07777));
    return DDSTORE_OK;
}

static void note_id(const struct stat *st, ddstore__file_id *id)
{
    id->device = st->st_dev;
    id->inode = st->st_ino;
    id->modified_ns = (int64_t)st->st_mtim.tv_sec * DDSTORE__S + st->st_mtim.tv_nsec;
}

/* Opens and checks; the descriptor or a negative code. */
static int open_checked(ddstore__dir *dir, int at, const char *name, int flags,
                        struct stat *st, ddstore_error *err)
{
    int fd = open_counted(at, name, flags | READ_FLAGS);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE))
        return ddstore__fail(err, DDSTORE_EKEY, "there is no file %s/%s", dir->path,
                             name);
    if (fd < 0 &&
        (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO))
        return ddstore__dir_fail(dir, name, "open", errno, err);
    if (fd < 0)
        return ddstore__fail(err, DDSTORE_ECONFLICT,
                             "%s/%s can't be opened (error %d): it is a link, or not a "
                             "file of this user's own: remove it",
                             dir->path, name, errno);
    int rc = DDSTORE_OK;
    if (fstat(fd, st) != 0)
        rc = errno == ESTALE ? DDSTORE_EKEY
                             : ddstore__dir_fail(dir, name, "examine", errno, err);
    if (!rc)
        rc = check_file(dir, name, st, err);
    if (!rc)
        return fd;
    ddstore__fd_close_file(fd);
    return rc;
}

static int read_all(const ddstore__dir *dir, const char *name, int fd, size_t size,
                    void **data, size_t *bytes, ddstore_error *err)
{
    char *buffer = malloc(size ? size : 1);
    size_t have = 0;
    if (!buffer)
        return ddstore__fail(err, DDSTORE_ENOMEM,
                             "no memory for the %zu bytes of %s/%s", size, dir->path,
                             name);
    while (have < size) {
        ssize_t got = read(fd, buffer + have, size - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int rc = errno == ESTALE ? DDSTORE_EKEY
                                     : ddstore__dir_fail(dir, name, "read", errno, err);
            free(buffer);
            return rc;
        }
        if (got == 0)
            break;
        have += (size_t)got;
    }
    *data = buffer;
    *bytes = have;
    return DDSTORE_OK;
}

int ddstore__dir_read_id(ddstore__dir *dir, const char *name, size_t max, void **data,
                         size_t *bytes, ddstore__file_id *id, ddstore_error *err)
{
    struct stat st = {0};
    *data = NULL;
    int at = ddstore__dir_enter(dir, false, err);
    if (at < 0)
        return at;
    int fd = open_checked(dir, at, name, O_RDONLY, &st, err);
    ddstore__dir_leave(dir, at);
    if (fd < 0)
        return fd;
    int rc;
    if (st.st_size < 0 || (uint64_t)st.st_size > max)
        rc =
            ddstore__fail(err, DDSTORE_ECONFLICT,
                          "%s/%s has %lld bytes, more than the %zu expected: remove it",
                          dir->path, name, (long long)st.st_size, max);
    else
        rc = read_all(dir, name, fd, (size_t)st.st_size, data, bytes, err);
    ddstore__fd_close_file(fd);
    if (!rc && id)
        note_id(&st, id);
    return rc;
}

int ddstore__dir_read(ddstore__dir *dir, const char *name, size_t max, void **data,
                      size_t *bytes, ddstore_error *err)
{
    return ddstore__dir_read_id(dir, name, max, data, bytes, NULL, err);
}

int ddstore__dir_open_file(ddstore__dir *dir, const char *name, ddstore_error *err)
{
    struct stat st;
    int at = ddstore__dir_enter(dir, false, err);
    if (at < 0)
        return at;
    int fd = open_checked(dir, at, name, O_RDWR, &st, err);
    ddstore__dir_leave(dir, at);
    return fd;
}

int ddstore__dir_identify(ddstore__dir *dir, const char *name, ddstore__file_id *id)
{
    struct stat st;
    int at = ddstore__dir_enter(dir, false, NULL);
    if (at < 0)
        return at;
    int rc =
        fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? DDSTORE_OK : DDSTORE_EKEY;
    ddstore__dir_leave(dir, at);
    if (!rc)
        rc = check_file(dir, name, &st, NULL);
    if (!rc)
        note_id(&st, id);
    return rc;
}

/* -- names -- */

/* The kernel's own record, read without a DIR, whose descriptor would not be ours. */
struct entry {
    uint64_t inode, offset;
    uint16_t bytes;
    uint8_t type;
    char name[];
};

static int visit_all(const ddstore__dir *dir, int fd, ddstore__dir_visit *visit,
                     void *arg, ddstore_error *err)
{
    _Alignas(struct entry) char buffer[16384];
    for (;;) {
        long got = syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
        if (got == 0 || (got < 0 && (errno == ENOENT || errno == ESTALE)))
            return DDSTORE_OK; /* also where it was removed meanwhile */
        if (got < 0)
            return ddstore__dir_fail(dir, NULL, "list", errno, err);
        for (long at = 0; at < got;) {
            const struct entry *e = (const struct entry *)(const void *)(buffer + at);
            at += e->bytes;
            if (strcmp(e->name, ".") == 0 || strcmp(e->name, "..") == 0)
                continue;
            int rc = visit(arg, e->name);
            if (rc)
                return rc;
        }
    }
}

/* Through a descriptor of its own: a listing begins where the last one through the same
 * open directory ended, and opening is the fresh look-up. */
int ddstore__dir_scan(ddstore__dir *dir, ddstore__dir_visit *visit, void *arg,
                      ddstore_error *err)
{
    int fd = ddstore__dir_enter(dir, false, err);
    if (fd < 0)
        return fd == DDSTORE_EKEY ? DDSTORE_OK : fd;
    if (!dir->parent)
        fd = ddstore__fd_own(openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return ddstore__dir_fail(dir, NULL, "list", errno, err);
    int rc = visit_all(dir, fd, visit, arg, err);
    ddstore__fd_close_file(fd);
    return rc;
}

int ddstore__dir_rename(ddstore__dir *dir, const char *from, const char *to)
{
    int at = ddstore__dir_enter(dir, false, NULL);
    if (at < 0)
        return -ENOENT;
    int rc = renameat(at, from, at, to) == 0 ? 0 : -errno;
    ddstore__dir_leave(dir, at);
    return rc;
}

int ddstore__dir_link(ddstore__dir *dir, const char *from, const char *to)
{
    int at = ddstore__dir_enter(dir, false, NULL);
    if (at < 0)
        return -ENOENT;
    int rc = linkat(at, from, at, to, 0) == 0 ? 0 : -errno;
    ddstore__dir_leave(dir, at);
    return rc;
}

int ddstore__dir_remove(ddstore__dir *dir, const char *name)
{
    int at = ddstore__dir_enter(dir, false, NULL);
    if (at < 0)
        return at == DDSTORE_EKEY ? DDSTORE_OK : at;
    int rc = unlinkat(at, name, 0) == 0 || errno == ENOENT ? DDSTORE_OK : DDSTORE_ESYS;
    ddstore__dir_leave(dir, at);
    return rc;
}

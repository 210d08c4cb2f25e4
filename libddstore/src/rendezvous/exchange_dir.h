/* A directory shared by members: checked, opened once, and its files read and written
 * in the one way that caches and strangers can't fool (design: one writer a file, a
 * temporary name, fsync, rename; readers open with O_NOFOLLOW and check owner and mode
 * by fstat). */
#ifndef DDSTORE_EXCHANGE_DIR_H
#define DDSTORE_EXCHANGE_DIR_H

#include "../base.h"

#include <sys/types.h>
#include <sys/uio.h>

typedef struct ddstore__dir ddstore__dir;

/* Opens path, absolute or relative; where create is set, makes it (mode 0700) if only
 * its last component is missing. Refuses, naming the path: a directory of another user
 * (root's own excepted when sticky), one that group or others may write without the
 * sticky bit, a file, a missing parent, with create also a read-only one. Not there and
 * not create: DDSTORE_EKEY. */
int ddstore__dir_open(const char *path, bool create, ddstore__dir **out,
                      ddstore_error *err);

/* The directory `name` below dir. It holds no descriptor: each use opens it anew, which
 * is a fresh look-up, checks that it is this user's own, and a write makes it (0700)
 * where it is not there. dir outlives it. NULL: no memory. */
ddstore__dir *ddstore__dir_sub(ddstore__dir *dir, const char *name);

void ddstore__dir_close(ddstore__dir *dir);
const char *ddstore__dir_path(const ddstore__dir *dir); /* as given, for messages */
int ddstore__dir_fd(const ddstore__dir *dir); /* -1: made by ddstore__dir_sub */

/* Writes a whole file under name: temporary name, fsync, rename. */
int ddstore__dir_write(ddstore__dir *dir, const char *name, const void *data,
                       size_t bytes, ddstore_error *err);
int ddstore__dir_write_parts(ddstore__dir *dir, const char *name,
                             const struct iovec *parts, int n, ddstore_error *err);

/* The same, but only where no file has that name: DDSTORE_ECONFLICT when there is one.
 */
int ddstore__dir_create(ddstore__dir *dir, const char *name, const void *data,
                        size_t bytes, ddstore_error *err);

/* Which file a name meant: a renamed file keeps it. */
typedef struct ddstore__file_id {
    dev_t device;
    ino_t inode;
    int64_t
        modified_ns; /* by the file server's clock: compare only with another file's */
} ddstore__file_id;

/* Reads a whole file of at most max bytes into *data (malloc'd). DDSTORE_EKEY: not
 * there (yet). Files of another user, links and other kinds: DDSTORE_ECONFLICT. */
int ddstore__dir_read(ddstore__dir *dir, const char *name, size_t max, void **data,
                      size_t *bytes, ddstore_error *err);
int ddstore__dir_read_id(ddstore__dir *dir, const char *name, size_t max, void **data,
                         size_t *bytes, ddstore__file_id *id, ddstore_error *err);

/* What a name means now, without opening it. DDSTORE_EKEY: nothing; DDSTORE_ECONFLICT:
 * not a regular file of this user's own. */
int ddstore__dir_identify(ddstore__dir *dir, const char *name, ddstore__file_id *id);

/* Calls visit for each name of a fresh listing until it returns non-zero, which is
 * passed on. A directory that isn't there has none. */
typedef int ddstore__dir_visit(void *arg, const char *name);
int ddstore__dir_scan(ddstore__dir *dir, ddstore__dir_visit *visit, void *arg,
                      ddstore_error *err);

/* 0 or the negative errno. Neither replaces anything by mistake: link fails with
 * -EEXIST. */
int ddstore__dir_rename(ddstore__dir *dir, const char *from, const char *to);
int ddstore__dir_link(ddstore__dir *dir, const char *from, const char *to);

int ddstore__dir_remove(ddstore__dir *dir,
                        const char *name); /* 0 also where it is gone */

/* Removes the directory itself (one of ddstore__dir_sub) if it is empty. */
void ddstore__dir_remove_self(ddstore__dir *dir);

/* Opens a file below dir for reading and writing in place, checked as ddstore__dir_read
 * does. Returns the descriptor (close with ddstore__fd_close_file) or a negative code.
 */
int ddstore__dir_open_file(ddstore__dir *dir, const char *name, ddstore_error *err);

/* Forces a fresh look-up on file systems that cache directories, before a poll. */
void ddstore__dir_refresh(ddstore__dir *dir);

/* Fills err for a failed system call on a file of dir, with what to do about it. */
int ddstore__dir_fail(const ddstore__dir *dir, const char *name, const char *what,
                      int errnum, ddstore_error *err);

/* A variable's name as a file name without its suffix: itself where it is
 * [A-Za-z0-9_-]{1,200}, else an escape that no plain name can have; over 200 bytes a
 * prefix and a 128-bit hash. */
void ddstore__escape_name(const char *name, char out[256]);

/* How many times this process tried to open a file of an exchange directory (tests). */
extern atomic_ullong ddstore__dir_opens;

/* -- between exchange_dir.c and exchange_io.c -- */

struct ddstore__dir {
    int fd;
    ddstore__dir *parent; /* NULL: opened by path */
    char *path, *name;
};

/* A descriptor of dir for one operation, or a negative code (DDSTORE_EKEY: not there).
 */
int ddstore__dir_enter(ddstore__dir *dir, bool create, ddstore_error *err);
void ddstore__dir_leave(ddstore__dir *dir, int fd);

#endif

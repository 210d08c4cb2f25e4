/* Files of this node that only root writes: the NIC map, and which directories go when
 * their jobs end. */
#include "spank_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_LONGEST (1 << 20)

static int refuse(int fd, const char *path, const char *reason, char *why)
{
    snprintf(why, DDSTORE__SPANK_REASON, "the node's state directory %.500s %s", path,
             reason);
    if (fd >= 0)
        close(fd);
    return -1;
}

int ddstore__state_open(const char *path, char *why)
{
    struct stat st;
    char reason[200];
    if (mkdir(path, 0700) && errno != EEXIST) {
        snprintf(reason, sizeof(reason), "can't be made: %s", strerror(errno));
        return refuse(-1, path, reason, why);
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        snprintf(reason, sizeof(reason), "can't be opened: %s", strerror(errno));
        return refuse(fd, path, reason, why);
    }
    if (st.st_uid != geteuid())
        return refuse(fd, path, "is not root's", why);
    if (st.st_mode & 022)
        return refuse(fd, path, "may be written by others", why);
    return fd;
}

static bool fill(int fd, const char *text)
{
    size_t n = strlen(text);
    ssize_t done = write(fd, text, n);
    if (done >= 0 && (size_t)done < n)
        errno = ENOSPC;
    return done >= 0 && (size_t)done == n && fsync(fd) == 0;
}

bool ddstore__state_write(int state, const char *name, const char *text, char *why)
{
    char temporary[128];
    snprintf(temporary, sizeof(temporary), ".new-%ld", (long)getpid());
    (void)unlinkat(state, temporary, 0); /* a killed child's of the same number */
    int fd = openat(state, temporary,
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good =
        fd >= 0 && fill(fd, text) && renameat(state, temporary, state, name) == 0;
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (good)
        return true;
    (void)unlinkat(state, temporary, 0);
    snprintf(why, DDSTORE__SPANK_REASON, "the node's state %.100s can't be kept: %s",
             name, strerror(code));
    return false;
}

char *ddstore__state_read(int state, const char *name)
{
    struct stat st;
    int fd = openat(state, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        st.st_size <= FILE_LONGEST)
        text = calloc(1, (size_t)st.st_size + 1);
    if (text && read(fd, text, (size_t)st.st_size) != st.st_size) {
        free(text);
        text = NULL;
    }
    close(fd);
    return text;
}

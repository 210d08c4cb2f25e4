/* What the library sees of this machine, as lines for tools. */
#include "iface.h"
#include "memory.h"
#include "rendezvous/pmi2_load.h"
#include "transport/ofi.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

static void line(ddstore__buffer *text, const char *key, const char *format, ...)
    DDSTORE__PRINTF(3, 4);

static void line(ddstore__buffer *text, const char *key, const char *format, ...)
{
    char out[512];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(out, sizeof(out), format, args);
    va_end(args);
    ddstore__add_bytes(text, key, strlen(key));
    ddstore__add_bytes(text, "\t", 1);
    ddstore__add_bytes(text, out,
                       used < (int)sizeof(out) ? (size_t)used : sizeof(out) - 1);
    ddstore__add_bytes(text, "\n", 1);
}

static void limit(ddstore__buffer *text, const char *key, int which)
{
    struct rlimit l;
    if (getrlimit(which, &l) != 0)
        return;
    char soft[32] = "unlimited", hard[32] = "unlimited";
    if (l.rlim_cur != RLIM_INFINITY)
        snprintf(soft, sizeof(soft), "%llu", (unsigned long long)l.rlim_cur);
    if (l.rlim_max != RLIM_INFINITY)
        snprintf(hard, sizeof(hard), "%llu", (unsigned long long)l.rlim_max);
    line(text, key, "%s (at most %s)", soft, hard);
}

static void limits(ddstore__buffer *text)
{
    struct statvfs shm;
    ddstore__memory memory;
    limit(text, "limit memlock bytes", RLIMIT_MEMLOCK);
    limit(text, "limit nofile", RLIMIT_NOFILE);
    int fd = (int)syscall(SYS_memfd_create, "ddstore-probe", 1u);
    line(text, "memfd", "%s", fd >= 0 ? "available" : "refused by the kernel");
    if (fd >= 0)
        close(fd);
    if (statvfs("/dev/shm", &shm) == 0)
        line(text, "/dev/shm", "%.0f MiB (not used by this library)",
             (double)shm.f_blocks * (double)shm.f_frsize / 1048576);
    ddstore__memory_read(&memory);
    line(text, "memory", "%.0f MiB may be committed (limit %.0f MiB of %s)",
         (double)memory.free / 1048576, (double)memory.limit / 1048576, memory.bound);
}

static void launcher(const ddstore__settings *settings, ddstore__buffer *text)
{
    const ddstore__pmi2_api *api = NULL;
    ddstore_error why;
    int rc = ddstore__pmi2_load(settings, &api, &why);
    line(text, "pmi2", "%s", rc ? why.message : api->path);
}

int ddstore_probe(char **text, ddstore_error *err)
{
    ddstore__settings settings;
    ddstore__buffer b = {0};
    struct utsname kernel;
    char nearest[IF_NAMESIZE];
    int rc = ddstore__settings_load(&settings, NULL, 0, err);
    if (!rc) {
        line(&b, "libddstore", "%s", ddstore_version());
        if (uname(&kernel) == 0)
            line(&b, "kernel", "%s %s", kernel.sysname, kernel.release);
        limits(&b);
        launcher(&settings, &b);
        ddstore__iface_probe(&settings, &b, nearest);
        char *fabric = NULL;
        size_t bytes = 0;
        if (ddstore__ofi_probe(&settings, nearest, &fabric, &bytes) == DDSTORE_OK &&
            fabric)
            ddstore__add_bytes(&b, fabric, bytes);
        free(fabric);
        ddstore__add_bytes(&b, "", 1);
        if (b.failed)
            rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory for the report");
    }
    ddstore__settings_free(&settings);
    if (rc)
        free(b.data);
    else
        *text = (char *)b.data;
    return rc;
}

/* The interface of transport/ofi in a build without libfabric's headers. */
#include "ofi.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int absent(ddstore_error *err)
{
    return ddstore__fail(
        err, DDSTORE_EFABRIC,
        "this build has no libfabric support: it was built without its "
        "headers (Debian: libfabric-dev)");
}

static bool has_entries(const char *path, const char *prefix)
{
    bool found = false;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && !found && (e = readdir(dir));)
        found = e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    if (dir)
        closedir(dir);
    return found;
}

int ddstore__ofi_open(const ddstore__settings *settings, const char *nearest,
                      ddstore__ofi **out, ddstore_error *err)
{
    (void)nearest;
    *out = NULL;
    if (strcmp(settings->fabric, "tcp") == 0 || strcmp(settings->fabric, "hsn") == 0)
        return 0;
    if (strcmp(settings->fabric, "auto") != 0)
        return ddstore__wrap(err, absent(err), "DDSTORE_FABRIC=%s", settings->fabric);
    if (has_entries("/sys/class/cxi", "") || has_entries("/sys/class/infiniband", "") ||
        has_entries("/dev", "hfi1"))
        ddstore__log(
            DDSTORE_LOG_WARN,
            "this host has RDMA hardware, but this build has no libfabric support, "
            "so peers on other hosts are read over TCP");
    return 0;
}

void ddstore__ofi_close(ddstore__ofi *ofi)
{
    (void)ofi;
}

void ddstore__ofi_drop(ddstore__ofi *ofi)
{
    (void)ofi;
}

const char *ddstore__ofi_provider(const ddstore__ofi *ofi)
{
    (void)ofi;
    return "";
}

size_t ddstore__ofi_address(const ddstore__ofi *ofi,
                            uint8_t out[DDSTORE__OFI_ADDRESS_MAX])
{
    (void)ofi;
    (void)out;
    return 0;
}

int ddstore__ofi_expose(ddstore__ofi *ofi, void *base, uint64_t bytes,
                        uint64_t *remote_base, uint64_t *key, ddstore__ofi_mr **out,
                        ddstore_error *err)
{
    (void)ofi, (void)base, (void)bytes, (void)remote_base, (void)key;
    *out = NULL;
    return absent(err);
}

void ddstore__ofi_release(ddstore__ofi_mr *mr)
{
    (void)mr;
}

int ddstore__ofi_peer_open(ddstore__ofi *ofi, const uint8_t *address, size_t bytes,
                           ddstore__ofi_peer **out, ddstore_error *err)
{
    (void)ofi, (void)address, (void)bytes;
    *out = NULL;
    return absent(err);
}

void ddstore__ofi_peer_close(ddstore__ofi_peer *peer)
{
    (void)peer;
}

int ddstore__ofi_register(ddstore__ofi *ofi, void *data, uint64_t bytes,
                          ddstore_error *err)
{
    (void)ofi, (void)data, (void)bytes;
    return absent(err);
}

int ddstore__ofi_unregister(ddstore__ofi *ofi, void *data, uint64_t bytes,
                            ddstore_error *err)
{
    (void)ofi, (void)data, (void)bytes;
    return absent(err);
}

int ddstore__ofi_read(ddstore__ofi *ofi, ddstore__ofi_job *job, ddstore_error *err)
{
    (void)ofi, (void)job;
    return absent(err);
}

int ddstore__ofi_probe(const ddstore__settings *settings, const char *nearest,
                       char **text, size_t *bytes)
{
    static const char line[] =
        "libfabric\tnot in this build: RDMA networks can't be used\n";
    (void)settings, (void)nearest;
    char *all = realloc(*text, *bytes + sizeof(line));
    if (!all)
        return DDSTORE_ENOMEM;
    memcpy(all + *bytes, line, sizeof(line));
    *text = all;
    *bytes += sizeof(line) - 1;
    return 0;
}

/* Loads libfabric at run time: its few exported functions, found by name. */
#ifndef DDSTORE_OFI_LOAD_H
#define DDSTORE_OFI_LOAD_H

#include "../settings.h"

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

/* Everything else of libfabric's interface is inline functions over tables of pointers.
 */
#define DDSTORE__OFI_SYMBOLS(X)                                                        \
    X(getinfo) X(freeinfo) X(dupinfo) X(fabric) X(version) X(strerror)

typedef struct ddstore__ofi_api {
/* NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define X(name) __typeof__(&fi_##name) name;
    DDSTORE__OFI_SYMBOLS(X)
#undef X
    const char *path; /* of the file that was loaded */
    uint32_t api;     /* the interface version to ask for */
} ddstore__ofi_api;

/* Loads the file that settings->libfabric names, else libfabric.so.1, once a process;
 * it stays loaded. Signal dispositions are as before afterwards. */
int ddstore__ofi_load(const ddstore__settings *settings, const ddstore__ofi_api **out,
                      ddstore_error *err);

/* fi_getinfo with the signal dispositions put back afterwards: providers set up
 * themselves in its first call. */
int ddstore__ofi_getinfo(const ddstore__ofi_api *api, const struct fi_info *hints,
                         struct fi_info **out);

/* In a forked child: the parent's other threads may have held the loader's lock. */
void ddstore__ofi_load_forked(void);

#endif

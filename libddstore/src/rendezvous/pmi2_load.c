/* Loads libpmi2 and looks whether the launcher has left this process a way to speak to
 * it.
 */
#include "pmi2_load.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define LIBRARY "libpmi2.so.0"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ddstore__pmi2_api loaded; /* guarded by lock until path is set, then constant */
static char loaded_path[512];

/* srun hands every task, and no child of it, a socket of its own. */
static int find_launcher(ddstore_error *err)
{
    const char *text = ddstore__environment("PMI_FD");
    char *end;
    struct stat st;
    if (!text)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "no launcher offers PMI2 to this process (PMI_FD isn't "
                             "set): start it by srun --mpi=pmi2");
    errno = 0;
    long fd = strtol(text, &end, 10);
    if (errno || *end || fd < 0 || fd > INT32_MAX || fstat((int)fd, &st) ||
        !S_ISSOCK(st.st_mode))
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "this process can't use the launcher's PMI2: PMI_FD=%.40s "
                             "is no open socket; only the process that srun starts has "
                             "one, not its children",
                             text);
    return DDSTORE_OK;
}

static const char *find_symbols(void *handle, ddstore__pmi2_api *api)
{
    void *symbol;
#define X(name, parameters)                                                            \
    symbol = dlsym(handle, "PMI2_" #name);                                             \
    if (!symbol)                                                                       \
        return "PMI2_" #name;                                                          \
    memcpy(&api->name, &symbol, sizeof(symbol));
    DDSTORE__PMI2_SYMBOLS(X)
#undef X
    return NULL;
}

static int load_named(const char *name, ddstore_error *err)
{
    Dl_info where;
    ddstore__pmi2_api api = {0};
    void *symbol, *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "can't load libpmi2: %s; install it (Debian: libpmi2-0) "
                             "or name its file in DDSTORE_LIBPMI2",
                             dlerror());
    const char *missing = find_symbols(handle, &api);
    if (missing)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED, "%s is no libpmi2: it lacks %s",
                             name, missing);
    memcpy(&symbol, &api.KVS_Fence, sizeof(symbol));
    if (!dladdr(symbol, &where) || !where.dli_fname)
        where.dli_fname = name;
    snprintf(loaded_path, sizeof(loaded_path), "%s", where.dli_fname);
    api.path = loaded_path;
    loaded = api;
    return DDSTORE_OK;
}

int ddstore__pmi2_load(const ddstore__settings *settings, const ddstore__pmi2_api **out,
                       ddstore_error *err)
{
    int rc = find_launcher(err);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    if (!loaded.path)
        rc = load_named(*settings->libpmi2 ? settings->libpmi2 : LIBRARY, err);
    pthread_mutex_unlock(&lock);
    if (!rc)
        *out = &loaded;
    return rc;
}

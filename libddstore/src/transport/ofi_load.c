/* Loads libfabric at run time and keeps its hands off the process's signal handlers. */
#include "ofi_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ddstore__ofi_api loaded; /* guarded by lock until path is set, then constant */
static char loaded_path[512], loaded_name[512];

typedef struct signals {
    struct sigaction old[NSIG];
    bool known[NSIG];
} signals;

static void signals_save(signals *s)
{
    for (int i = 1; i < NSIG; i++)
        s->known[i] = sigaction(i, NULL, &s->old[i]) == 0;
}

static void signals_restore(const signals *s)
{
    for (int i = 1; i < NSIG; i++) {
        struct sigaction now;
        if (!s->known[i] || sigaction(i, NULL, &now) != 0)
            continue;
        if (now.sa_handler != s->old[i].sa_handler ||
            now.sa_flags != s->old[i].sa_flags)
            (void)sigaction(i, &s->old[i], NULL);
    }
}

/* Variables that some provider's library reads while it is loaded. */
static void prepare_environment(const ddstore__settings *settings)
{
    /* Debian 12's infinipath libraries otherwise take SIGINT, SIGSEGV and others. */
    ddstore__environment_default("IPATH_NO_BACKTRACE", "1");
    ddstore__environment_default("HFI_NO_BACKTRACE", "1");
    if (!settings->fork_workers)
        return;
    ddstore__environment_default("RDMAV_FORK_SAFE", "1");
    ddstore__environment_default("IBV_FORK_SAFE", "1");
    ddstore__environment_default("CXI_FORK_SAFE", "1");
    ddstore__environment_default("FI_EFA_FORK_SAFE", "1");
}

/* dlsym's default versions are taken on purpose: libfabric's structures only grow at
 * their ends and all of them come from the library itself (fi_dupinfo(NULL) for hints),
 * so that headers older or newer than the library do no harm. */
static const char *find_symbols(void *handle, ddstore__ofi_api *api)
{
    void *symbol;
#define X(name)                                                                        \
    symbol = dlsym(handle, "fi_" #name);                                               \
    if (!symbol)                                                                       \
        return "fi_" #name;                                                            \
    memcpy(&api->name, &symbol, sizeof(symbol));
    DDSTORE__OFI_SYMBOLS(X)
#undef X
    return NULL;
}

static int load_named(const char *name, ddstore_error *err)
{
    signals before;
    signals_save(&before);
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    signals_restore(&before);
    if (!handle)
        return ddstore__fail(
            err, DDSTORE_EFABRIC,
            "can't load libfabric: %s; install it (Debian: libfabric1) or "
            "name its file in DDSTORE_LIBFABRIC",
            dlerror());
    ddstore__ofi_api api = {0};
    const char *missing = find_symbols(handle, &api);
    if (missing)
        return ddstore__fail(err, DDSTORE_EFABRIC, "%s is no libfabric: it lacks %s",
                             name, missing);
    uint32_t version = api.version();
    if (FI_VERSION_LT(version, FI_VERSION(1, 9)))
        return ddstore__fail(err, DDSTORE_EFABRIC,
                             "%s is libfabric %u.%u; 1.9 or newer is needed", name,
                             FI_MAJOR(version), FI_MINOR(version));
    api.api = FI_VERSION_LT(version, FI_VERSION(1, 17)) ? version : FI_VERSION(1, 17);
    Dl_info where;
    void *symbol;
    memcpy(&symbol, &api.getinfo, sizeof(symbol));
    if (!dladdr(symbol, &where) || !where.dli_fname)
        where.dli_fname = name;
    snprintf(loaded_path, sizeof(loaded_path), "%s", where.dli_fname);
    snprintf(loaded_name, sizeof(loaded_name), "%s", name);
    api.path = loaded_path;
    loaded = api;
    return 0;
}

int ddstore__ofi_load(const ddstore__settings *settings, const ddstore__ofi_api **out,
                      ddstore_error *err)
{
    const char *name = *settings->libfabric ? settings->libfabric : "libfabric.so.1";
    int rc = 0;
    pthread_mutex_lock(&lock);
    if (!loaded.path) {
        prepare_environment(settings);
        rc = load_named(name, err);
    } else if (*settings->libfabric && strcmp(name, loaded_name) != 0 &&
               strcmp(name, loaded_path) != 0) {
        rc = ddstore__fail(err, DDSTORE_EFABRIC,
                           "DDSTORE_LIBFABRIC is %s, but this process has loaded %s",
                           name, loaded_path);
    }
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        *out = &loaded;
    return rc;
}

int ddstore__ofi_getinfo(const ddstore__ofi_api *api, const struct fi_info *hints,
                         struct fi_info **out)
{
    signals before;
    pthread_mutex_lock(&lock);
    signals_save(&before);
    int rc = api->getinfo(api->api, NULL, NULL, 0, hints, out);
    signals_restore(&before);
    pthread_mutex_unlock(&lock);
    return rc;
}

void ddstore__ofi_load_forked(void)
{
    pthread_mutex_init(&lock, NULL);
}

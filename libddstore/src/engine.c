/* The engine: starting and stopping what all stores of this process share, and what a
 * forked child does with it. */
#include "engine.h"

#include "iface.h"
#include "nic_map.h"
#include "peer.h"
#include "progress.h"
#include "reader.h"
#include "run.h"

#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* engine, its refs and ofi */
static ddstore__engine *engine;

/* Before a fork: the library's own thread stands still and no descriptor is being made.
 * The forking thread holds none of the library's locks, unless it is in a function that
 * the host program gave; then nothing below needs that lock. */
static _Thread_local bool fds_stand_still;

/* The parent's cxi domain was not prepared for forks: the driver (kdreg2) leaves a
 * child that opens one of its own without its memory. */
static bool fork_unprepared;

static bool is_cxi(const char *provider)
{
    return strncmp(provider, "cxi", 3) == 0;
}

int ddstore__engine_check_forked(ddstore_error *err)
{
    if (!fork_unprepared)
        return DDSTORE_OK;
    return ddstore__fail(
        err, DDSTORE_EFABRIC,
        "this process was forked by one that uses cxi without preparing for it: set "
        "DDSTORE_FORK_WORKERS=1 before the parent opens its store, or start workers by "
        "spawn or forkserver");
}

static void before_fork(void)
{
    ddstore__progress_fork_prepare();
    fds_stand_still = ddstore__fd_fork_prepare();
}

static void in_parent(void)
{
    ddstore__fd_fork_parent(fds_stand_still);
    ddstore__progress_fork_parent();
}

/* In a forked child: the library's descriptors are closed, so that the parent's death
 * is seen; everything else is forgotten, nothing is freed or called. */
static void in_child(void)
{
    ddstore__fd_fork_child(fds_stand_still);
    ddstore__log_child();
    ddstore__clock_child();
    if (engine && engine->ofi)
        ddstore__ofi_drop(engine->ofi);
    if (engine)
        fork_unprepared = !engine->fork_ready && is_cxi(engine->self.provider);
    engine = NULL;
    pthread_mutex_init(&lock, NULL);
    ddstore__progress_child();
    ddstore__run_child();
    ddstore__peer_child();
    ddstore__segment_child();
    ddstore__reader_child();
    ddstore__sigterm_child();
}

static void at_first(void)
{
    struct rlimit limit;
    (void)pthread_atfork(before_fork, in_parent, in_child);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void stop(ddstore__engine *e)
{
    ddstore__progress_stop();
    ddstore__segment_withdraw(e->beacon);
    ddstore__ofi_close(e->ofi);
    free(e);
}

static int open_ofi(ddstore__engine *e, const ddstore__settings *settings,
                    ddstore_error *err)
{
    int rc = ddstore__ofi_open(settings, e->iface_near ? e->iface : "", &e->ofi, err);
    if (rc || !e->ofi)
        return rc;
    e->fork_ready = settings->fork_workers;
    snprintf(e->self.provider, sizeof(e->self.provider), "%s",
             ddstore__ofi_provider(e->ofi));
    e->self.ofi_bytes = (uint8_t)ddstore__ofi_address(e->ofi, e->self.ofi);
    return DDSTORE_OK;
}

static int start(ddstore__engine *e, const ddstore__settings *settings,
                 ddstore_error *err)
{
    size_t n;
    uint8_t nobody[16];
    ddstore__descriptor beacon;
    int rc = ddstore__iface_choose(settings, e->self.address, DDSTORE__ADDRESSES, &n,
                                   e->iface, &e->iface_near, err);
    if (rc)
        return rc;
    ddstore__random(e->self.uid, sizeof(e->self.uid));
    ddstore__random(nobody, sizeof(nobody));
    ddstore__process_self(&e->self.process);
    rc = ddstore__segment_create(nobody, 0, "the beacon", &e->beacon, err);
    if (!rc)
        rc = ddstore__progress_start(e->self.uid, e->self.address, n,
                                     settings->read_timeout_s, err);
    if (rc)
        return rc;
    ddstore__segment_describe(e->beacon, e->self.uid, &beacon);
    e->self.beacon_fd = beacon.fd;
    memcpy(e->self.beacon_token, beacon.token, 16);
    return DDSTORE_OK;
}

static bool wants_ofi(const ddstore__settings *s)
{
    return strcmp(s->fabric, "tcp") != 0 && strcmp(s->fabric, "hsn") != 0;
}

int ddstore__engine_acquire(const ddstore__settings *settings, bool may_use_ofi,
                            ddstore__engine **out, ddstore_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, at_first);
    /* Also where the engine runs and has chosen already. */
    int rc = ddstore__nic_map_check(settings, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    ddstore__engine *e = engine;
    if (!e) {
        e = calloc(1, sizeof(*e));
        rc = e ? start(e, settings, err)
               : ddstore__fail(err, DDSTORE_ENOMEM, "no memory for the engine");
    }
    if (!rc && may_use_ofi && wants_ofi(settings) && !e->ofi)
        rc = open_ofi(e, settings, err);
    if (!rc) {
        engine = *out = e;
        e->refs++;
    } else if (e && !engine) {
        stop(e);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void ddstore__engine_release(ddstore__engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&lock);
    if (--e->refs == 0) {
        engine = NULL;
        stop(e);
    }
    pthread_mutex_unlock(&lock);
}

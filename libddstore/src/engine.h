/* The engine of this process: started by the first store, stopped with the last. */
#ifndef DDSTORE_ENGINE_H
#define DDSTORE_ENGINE_H

#include "segment.h"
#include "settings.h"

typedef struct ddstore__engine {
    ddstore__contact self; /* what others are told */
    ddstore__segment *beacon;
    ddstore__ofi *ofi; /* NULL: path 2 isn't used */
    char iface[32];    /* the first one listened on */
    bool iface_near;   /* it is nearest to this process's CPUs */
    bool fork_ready;   /* ofi was opened with DDSTORE_FORK_WORKERS=1 */
    int refs;
} ddstore__engine;

/* The running engine, or a new one: limits raised, addresses chosen and listened on,
 * the progress thread started, libfabric opened where it may be used and the settings
 * ask for it. A running one keeps the interface that it has chosen. */
int ddstore__engine_acquire(const ddstore__settings *settings, bool may_use_ofi,
                            ddstore__engine **out, ddstore_error *err);
void ddstore__engine_release(ddstore__engine *engine);

/* DDSTORE_EFABRIC: this process was forked by one whose network does not bear it. */
int ddstore__engine_check_forked(ddstore_error *err);

#endif

/* Destinations that a store's user registered for reuse. Only path 2 needs more than to
 * remember them. */
#ifndef DDSTORE_REGISTRY_H
#define DDSTORE_REGISTRY_H

#include "transport/ofi.h"

#include <pthread.h>

typedef struct ddstore__registry {
    pthread_mutex_t lock;
    struct ddstore__range {
        uint8_t *data;
        uint64_t bytes;
    } * range;
    size_t n, room;
} ddstore__registry;

void ddstore__registry_open(ddstore__registry *r);
/* Takes back all that is still registered with ofi (nullable). */
void ddstore__registry_close(ddstore__registry *r, ddstore__ofi *ofi);

int ddstore__registry_add(ddstore__registry *r, ddstore__ofi *ofi, void *data,
                          uint64_t bytes, ddstore_error *err);
int ddstore__registry_remove(ddstore__registry *r, ddstore__ofi *ofi, void *data,
                             uint64_t bytes, ddstore_error *err);

#endif

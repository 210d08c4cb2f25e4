/* Registered destinations: a short list under a lock that reads never take. */
#include "registry.h"

#include <stdlib.h>

void ddstore__registry_open(ddstore__registry *r)
{
    *r = (ddstore__registry){0};
    pthread_mutex_init(&r->lock, NULL);
}

void ddstore__registry_close(ddstore__registry *r, ddstore__ofi *ofi)
{
    for (size_t i = 0; ofi && i < r->n; i++)
        (void)ddstore__ofi_unregister(ofi, r->range[i].data, r->range[i].bytes, NULL);
    free(r->range);
    r->range = NULL;
    r->n = r->room = 0;
}

static size_t find(const ddstore__registry *r, const void *data, uint64_t bytes)
{
    size_t i = 0;
    while (i < r->n && !(r->range[i].data == data && r->range[i].bytes == bytes))
        i++;
    return i;
}

static int add(ddstore__registry *r, ddstore__ofi *ofi, void *data, uint64_t bytes,
               ddstore_error *err)
{
    if (find(r, data, bytes) < r->n)
        return DDSTORE_OK;
    if (r->n == r->room) {
        size_t room = r->room ? r->room * 2 : 16;
        struct ddstore__range *range = realloc(r->range, room * sizeof(*range));
        if (!range)
            return ddstore__fail(err, DDSTORE_ENOMEM, "no memory to register a buffer");
        r->range = range;
        r->room = room;
    }
    int rc = ofi ? ddstore__ofi_register(ofi, data, bytes, err) : DDSTORE_OK;
    if (!rc)
        r->range[r->n++] = (struct ddstore__range){data, bytes};
    return rc;
}

int ddstore__registry_add(ddstore__registry *r, ddstore__ofi *ofi, void *data,
                          uint64_t bytes, ddstore_error *err)
{
    pthread_mutex_lock(&r->lock);
    int rc = add(r, ofi, data, bytes, err);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int ddstore__registry_remove(ddstore__registry *r, ddstore__ofi *ofi, void *data,
                             uint64_t bytes, ddstore_error *err)
{
    int rc = DDSTORE_OK;
    pthread_mutex_lock(&r->lock);
    size_t i = find(r, data, bytes);
    if (i == r->n)
        rc = ddstore__fail(err, DDSTORE_EINVAL, "the buffer is not registered");
    else
        r->range[i] = r->range[--r->n];
    if (!rc && ofi)
        rc = ddstore__ofi_unregister(ofi, data, bytes, err);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

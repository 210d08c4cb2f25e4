/* What collective calls of a store share: entering them, agreeing in them, and the one
 * that does nothing else. */
#include "store.h"

#include <stdlib.h>

#define HEAD_BYTES 8 /* of a message: code, length of its sentence */

void ddstore__gathered_free(ddstore__gathered *g)
{
    free(g->data);
    free(g->offset);
    *g = (ddstore__gathered){NULL, NULL};
}

/* The first failure among the messages, as everyone's error. */
static int first_failure(const ddstore *store, const ddstore__gathered *g,
                         const char *what, ddstore_error *err)
{
    for (int r = 0; r < store->size; r++) {
        const uint8_t *p = g->data + g->offset[r];
        uint64_t bytes = g->offset[r + 1] - g->offset[r];
        uint32_t text = bytes >= HEAD_BYTES ? ddstore__get32(p + 4) : 0;
        if (bytes < HEAD_BYTES || text > bytes - HEAD_BYTES)
            return ddstore__fail(err, DDSTORE_ECONFLICT,
                                 "rank %d sent no message of %s", r, what);
        int code = (int)ddstore__get32(p);
        if (code)
            return ddstore__fail(err, code, "%s failed on rank %d: %.*s", what, r,
                                 (int)text, (const char *)p + HEAD_BYTES);
    }
    return DDSTORE_OK;
}

int ddstore__store_agree(ddstore *store, const ddstore_error *own_failure,
                         const char *what, const void *message, size_t bytes,
                         ddstore__gathered *out, ddstore_error *err)
{
    ddstore__buffer b = {0};
    const char *text = own_failure ? own_failure->message : "";
    *out = (ddstore__gathered){NULL, NULL};
    ddstore__add32(&b, own_failure ? (uint32_t)own_failure->code : 0);
    ddstore__add32(&b, (uint32_t)strlen(text));
    ddstore__add_bytes(&b, text, strlen(text));
    ddstore__add_bytes(&b, message, bytes);
    out->offset = malloc(((size_t)store->size + 1) * sizeof(*out->offset));
    if (b.failed || !out->offset) {
        free(b.data);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %s", what);
    }
    void *data = NULL;
    int rc =
        ddstore_comm_allgatherv(store->comm, b.data, b.bytes, &data, out->offset, err);
    out->data = data;
    free(b.data);
    if (!rc)
        rc = first_failure(store, out, what, err);
    if (rc) {
        ddstore__gathered_free(out);
        return rc;
    }
    return DDSTORE_OK;
}

const uint8_t *ddstore__gathered_at(const ddstore__gathered *g, int rank, size_t *bytes)
{
    *bytes = (size_t)(g->offset[rank + 1] - g->offset[rank]) - HEAD_BYTES;
    return g->data + g->offset[rank] + HEAD_BYTES;
}

ddstore__reader *ddstore__collective_enter(ddstore *store, ddstore__call call, int *rc,
                                           ddstore_error *err)
{
    ddstore__reader *reader = ddstore__reader_enter(store);
    if (!reader) {
        *rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a collective call");
        return NULL;
    }
    *rc = ddstore__store_usable(store, err);
    if (!*rc && !store->comm)
        *rc = ddstore__fail(err, DDSTORE_EINVAL,
                            "%s only reads: collective calls are of the core's ranks",
                            ddstore__who(store));
    if (!*rc && atomic_flag_test_and_set(&store->in_collective))
        *rc =
            ddstore__fail(err, DDSTORE_ECONFLICT,
                          "another thread is in a collective call of this store: only "
                          "one at a time may be");
    if (!*rc) {
        store->comm->call = call;
        return reader;
    }
    ddstore__reader_leave(reader);
    return NULL;
}

int ddstore__collective_leave(ddstore *store, ddstore__reader *reader, int rc)
{
    bool ends = rc == DDSTORE_ETIMEDOUT && store->comm->ops->ends_by_timeout;
    atomic_flag_clear(&store->in_collective);
    ddstore__reader_leave(reader);
    if (ends)
        ddstore_free(store);
    return rc;
}

/* -- epochs -- */

static int epoch(ddstore *store, ddstore_error *err)
{
    int rc = DDSTORE_OK;
    ddstore_error mine;
    ddstore__gathered g;
    for (ddstore_var *v = atomic_load(&store->vars); v && !rc; v = v->next)
        if (v->window)
            rc = store->mpi.window_sync(store->mpi.comm.arg, v->window, &mine);
    rc = ddstore__store_agree(store, rc ? &mine : NULL, "an epoch", NULL, 0, &g, err);
    ddstore__gathered_free(&g);
    return rc;
}

int ddstore_epoch(ddstore *store, ddstore_error *err)
{
    int rc = ddstore__store_usable(store, err);
    if (rc || store->method != 0)
        return rc;
    ddstore__reader *reader =
        ddstore__collective_enter(store, DDSTORE__CALL_EPOCH, &rc, err);
    return reader ? ddstore__collective_leave(store, reader, epoch(store, err)) : rc;
}

int ddstore_meet_to_free(ddstore *store, ddstore_error *err)
{
    ddstore__gathered g;
    int rc = ddstore__store_usable(store, err);
    if (rc || store->method != 0)
        return rc;
    ddstore__reader *reader =
        ddstore__collective_enter(store, DDSTORE__CALL_FREE, &rc, err);
    if (!reader)
        return rc;
    rc = ddstore__store_agree(store, NULL, "free", NULL, 0, &g, err);
    ddstore__gathered_free(&g);
    return ddstore__collective_leave(store, reader, rc);
}

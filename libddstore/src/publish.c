/* Method 2, the core: publishing a variable's record, and taking it back. */
#include "published.h"

#include <stdio.h>
#include <stdlib.h>

#define GREET_NS (5 * DDSTORE__S) /* for a run that may be gone */

void ddstore__record_name(const char *name, char out[DDSTORE__RECORD_NAME])
{
    char escaped[256];
    ddstore__escape_name(name, escaped);
    snprintf(out, DDSTORE__RECORD_NAME, "%s.bin", escaped);
}

/* Reads and parses a record file. DDSTORE_EKEY: there is none. */
int ddstore__record_read(ddstore__dir *dir, const char *file,
                         ddstore__variable_record *out, ddstore_error *err)
{
    void *data;
    size_t bytes;
    memset(out, 0, sizeof(*out));
    int rc = ddstore__dir_read(dir, file, DDSTORE__RECORD_MAX, &data, &bytes, err);
    if (rc)
        return rc;
    rc = ddstore__record_decode(data, bytes, out);
    free(data);
    if (rc) {
        ddstore__record_free(out);
        return ddstore__fail(err, DDSTORE_EINVAL, "%s is not a whole record", file);
    }
    return DDSTORE_OK;
}

ddstore__patience ddstore__sign_of_life(const ddstore *store, const ddstore__wait *wait)
{
    ddstore__patience patience = {GREET_NS, wait->closed, .probe = true};
    int64_t left = wait->deadline_ns - ddstore__now_ns();
    if (store->access.patience.timeout_ns < patience.timeout_ns)
        patience.timeout_ns = store->access.patience.timeout_ns;
    if (left < patience.timeout_ns)
        patience.timeout_ns = left > 100 * DDSTORE__MS ? left : 100 * DDSTORE__MS;
    return patience;
}

/* Whether core rank 0 of the record's run answers. */
int ddstore__record_greet(const ddstore *store, const ddstore__variable_record *record,
                          const ddstore__wait *wait, ddstore_error *err)
{
    ddstore__ticket ticket = store->access.ticket;
    ddstore__patience patience = ddstore__sign_of_life(store, wait);
    memcpy(ticket.run, record->run, 16);
    memcpy(ticket.secret, record->secret, 16);
    ddstore__peer *peer =
        ddstore__peer_get(&record->rank[0].contact, store->engine->self.uid);
    if (!peer)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a peer");
    int rc = ddstore__channel_ask(peer, &ticket, &patience, DDSTORE__PING, NULL, NULL,
                                  NULL, err);
    ddstore__peer_put(peer);
    return rc;
}

/* A living group's record of another namespace must not be replaced. */
static int check_free(ddstore *store, const char *file, const char *name,
                      ddstore_error *err)
{
    ddstore__variable_record old;
    int rc = ddstore__record_read(store->dir, file, &old, err);
    if (rc == DDSTORE_EKEY || rc == DDSTORE_EINVAL)
        return DDSTORE_OK;
    if (rc)
        return rc;
    if (!ddstore__same16(old.run, store->access.ticket.run) &&
        ddstore__record_greet(store, &old,
                              &(ddstore__wait){DDSTORE__FOREVER, &store->closed},
                              NULL) == DDSTORE_OK)
        rc = ddstore__fail(
            err, DDSTORE_ECONFLICT,
            "variable %s is published in %s already, by process %u on host %s "
            "(namespace %s): give each store a directory of its own or other "
            "names",
            name, ddstore__dir_path(store->dir), old.rank[0].contact.process.pid,
            old.rank[0].contact.process.host, old.ns);
    ddstore__record_free(&old);
    return rc;
}

int ddstore__publish(ddstore *store, const ddstore__variable_record *record,
                     ddstore_error *err)
{
    char file[DDSTORE__RECORD_NAME];
    ddstore__buffer b = {0};
    ddstore__record_name(record->name, file);
    int rc = ddstore__comm_may_publish(store->comm, err);
    if (!rc)
        rc = check_free(store, file, record->name, err);
    if (rc)
        return rc;
    ddstore__record_encode(record, &b);
    if (b.failed)
        rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory for the record of %s",
                           record->name);
    if (!rc)
        rc = ddstore__dir_write(store->dir, file, b.data, b.bytes, err);
    if (!rc && ddstore__run_publish(store->run, record->name, b.data, b.bytes))
        ddstore__log(DDSTORE_LOG_WARN,
                     "variable %s can be joined only while its file %s "
                     "is there: no memory to offer it otherwise",
                     record->name, file);
    free(b.data);
    return rc;
}

void ddstore__unpublish_all(ddstore *store)
{
    if (store->rank != 0)
        return;
    for (ddstore_var *v = atomic_load(&store->vars); v; v = v->next) {
        ddstore__variable_record record;
        char file[DDSTORE__RECORD_NAME];
        ddstore__record_name(v->name, file);
        if (ddstore__record_read(store->dir, file, &record, NULL))
            continue;
        if (ddstore__same16(record.run, store->access.ticket.run))
            (void)ddstore__dir_remove(store->dir, file);
        ddstore__record_free(&record);
    }
}

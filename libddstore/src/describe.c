/* Describing a store's variables as bytes, and opening a read-only store of what bytes
 * describe: in a forked or spawned process, or beside the first one. */
#include "store.h"

#include "description.h"

#include <stdio.h>
#include <stdlib.h>

/* -- describing --
 *
 * In a forked child whatever lock another thread of the parent held stays held. So this
 * takes none: it walks the list of variables, which only grows and whose entries are
 * whole before they are in it. */

/* The groups that were written. */
typedef struct groups {
    struct {
        uint8_t run[16];
        int ranks;
    } * at;
    uint32_t n;
    bool failed; /* no memory */
} groups;

static uint32_t note_group(groups *known, const uint8_t run[16], int ranks)
{
    void *more = realloc(known->at, ((size_t)known->n + 1) * sizeof(*known->at));
    if (!more) {
        known->failed = true;
        return DDSTORE__NO_GROUP;
    }
    known->at = more;
    memcpy(known->at[known->n].run, run, 16);
    known->at[known->n].ranks = ranks;
    return known->n++;
}

static uint32_t group_of(groups *known, const ddstore_var *var, ddstore__buffer *b)
{
    const ddstore__ticket *t = &var->access.ticket;
    for (uint32_t i = 0; i < known->n; i++)
        if (known->at[i].ranks == var->ranks &&
            ddstore__same16(known->at[i].run, t->run))
            return i;
    ddstore__description_add_group(b, t->run, t->secret, var->ranks);
    for (int r = 0; r < var->ranks; r++)
        ddstore__description_add_contact(b, &var->part[r].peer->contact);
    return note_group(known, t->run, var->ranks);
}

/* A core rank's group, and a reader's, is known before they have variables. */
static uint32_t own_group(const ddstore *store, groups *known, ddstore__buffer *b)
{
    const ddstore__ticket *t =
        store->core ? &store->access.ticket : &store->core_ticket;
    if (!(store->core || store->reader) || !store->n_peers)
        return DDSTORE__NO_GROUP;
    ddstore__description_add_group(b, t->run, t->secret, store->n_peers);
    for (int r = 0; r < store->n_peers; r++)
        ddstore__description_add_contact(b, &store->peer[r]->contact);
    return note_group(known, t->run, store->n_peers);
}

static void add_variable(const ddstore_var *var, uint32_t group,
                         ddstore__rank_record *rank, ddstore__buffer *b)
{
    ddstore__variable_record r = {
        .name = var->name,
        .dtype = var->dtype,
        .disp = var->disp,
        .itemsize = var->itemsize,
        .ranks = var->ranks,
        .rank = rank,
    };
    for (int i = 0; i < var->ranks; i++) {
        rank[i].rows = var->layout.start[i + 1] - var->layout.start[i];
        rank[i].at = var->part[i].at;
    }
    ddstore__description_add_variable(b, group, &r);
}

/* An extra member's that it has joined anew since is left out. */
static bool is_newest(const ddstore_var *var)
{
    for (const ddstore_var *v = atomic_load(&var->next); v; v = atomic_load(&v->next))
        if (strcmp(v->name, var->name) == 0)
            return false;
    return true;
}

static bool write_all(const ddstore *store, ddstore__buffer *b)
{
    groups known = {0};
    bool whole = true;
    ddstore__description_begin(b, store->method, store->rank, store->ns);
    uint32_t current = own_group(store, &known, b);
    for (const ddstore_var *v = atomic_load(&store->vars); v && whole;
         v = atomic_load(&v->next)) {
        if (!is_newest(v))
            continue;
        ddstore__rank_record *rank = calloc((size_t)v->ranks, sizeof(*rank));
        uint32_t group = group_of(&known, v, b);
        if (!store->core && !store->reader)
            current = group; /* an extra's last */
        whole = rank && !known.failed;
        if (whole)
            add_variable(v, group, rank, b);
        free(rank);
    }
    ddstore__description_end(b, current);
    free(known.at);
    return whole && !known.failed && !b->failed;
}

int ddstore_describe(const ddstore *store, void **data, size_t *bytes,
                     ddstore_error *err)
{
    ddstore__buffer b = {0};
    *data = NULL;
    if (store->method == 0)
        return ddstore__fail(
            err, DDSTORE_EUNSUPPORTED,
            "a store of method 0 is read by the ranks of its communicator only: for "
            "readers in other processes or threads (fork_reader, pickling) use method "
            "1 "
            "or 2");
    if (atomic_load(&store->closed))
        return ddstore__fail(err, DDSTORE_ECLOSED, "the store was freed");
    if (!write_all(store, &b)) {
        free(b.data);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory to describe the store");
    }
    if (b.bytes > DDSTORE__RECORD_MAX) {
        free(b.data);
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "the store is too large to be described: %zu bytes, at most "
            "%u",
            b.bytes, DDSTORE__RECORD_MAX);
    }
    *data = b.data;
    *bytes = b.bytes;
    return DDSTORE_OK;
}

/* -- opening -- */

static int check_group(const ddstore *store, const ddstore__group_record *g,
                       ddstore_error *err)
{
    int rc = ddstore__check_provider(store, &g->contact[0], err);
    for (int r = 0; !rc && r < g->ranks; r++)
        rc = ddstore__check_reach(store, &g->contact[r], r, err);
    return rc;
}

static ddstore__ticket ticket_of(const ddstore *store, const uint8_t run[16],
                                 const uint8_t secret[16])
{
    ddstore__ticket ticket = store->access.ticket;
    memcpy(ticket.run, run, 16);
    memcpy(ticket.secret, secret, 16);
    return ticket;
}

static int open_variable(ddstore *store, const ddstore__variable_record *r,
                         ddstore_error *err)
{
    ddstore_var *var = NULL;
    ddstore__ticket ticket = ticket_of(store, r->run, r->secret);
    int rc = ddstore__check_name(r->name, err);
    if (!rc && ddstore_find(store, r->name))
        rc = ddstore__fail(err, DDSTORE_EINVAL, "variable %s is described twice",
                           r->name);
    if (!rc)
        rc = ddstore__var_make(store, r, &ticket, &var, err);
    if (!rc)
        ddstore__var_enter(store, var);
    return rc;
}

/* The core ranks that the store belongs to. */
static int take_group(ddstore *store, const ddstore__group_record *g,
                      ddstore_error *err)
{
    store->peer = calloc((size_t)g->ranks, sizeof(*store->peer));
    if (!store->peer)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %d peers", g->ranks);
    store->n_peers = store->size = g->ranks;
    store->core_ticket = ticket_of(store, g->run, g->secret);
    for (int r = 0; r < g->ranks; r++) {
        store->peer[r] = ddstore__peer_get(&g->contact[r], store->engine->self.uid);
        if (!store->peer[r])
            return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for rank %d", r);
    }
    return DDSTORE_OK;
}

static int damaged(int rc, ddstore_error *err)
{
    return rc == DDSTORE_ENOMEM
               ? ddstore__fail(err, rc, "no memory to read a store's description")
               : ddstore__fail(err, DDSTORE_EINVAL,
                               "the description of a store is damaged, or of another "
                               "version of this library");
}

static int open_all(ddstore *store, ddstore__description *d, ddstore_error *err)
{
    uint32_t group, checked = 0;
    ddstore__variable_record variable;
    int rc = DDSTORE_OK, more;
    do {
        more = ddstore__description_next(d, &group, &variable);
        for (; !rc && more >= 0 && checked < d->n_groups; checked++)
            rc = check_group(store, &d->group[checked], err);
        if (!rc && more == 1)
            rc = open_variable(store, &variable, err);
        ddstore__record_free(&variable);
    } while (!rc && more == 1);
    if (!rc && more < 0)
        rc = damaged(more, err);
    if (!rc && d->current != DDSTORE__NO_GROUP)
        rc = take_group(store, &d->group[d->current], err);
    return rc;
}

int ddstore_open_reader(const void *data, size_t bytes, const ddstore_setting *settings,
                        size_t n_settings, ddstore **out, ddstore_error *err)
{
    ddstore *store = NULL;
    ddstore__description d;
    int rc = ddstore__description_open(data, bytes, &d);
    if (rc) {
        ddstore__description_close(&d);
        return damaged(rc, err);
    }
    ddstore_options options = {
        .struct_bytes = sizeof(options),
        .method = d.method,
        .exchange_ns = d.ns,
        .settings = settings,
        .n_settings = n_settings,
    };
    rc = ddstore__engine_check_forked(err);
    if (!rc)
        rc = ddstore__store_begin(&options, DDSTORE__READER, &store, err);
    if (!rc) {
        store->rank = d.rank;
        rc = open_all(store, &d, err);
    }
    ddstore__description_close(&d);
    if (!rc) {
        ddstore__log_paths(store);
        *out = store;
    } else if (store) {
        ddstore_close(store);
    }
    return rc;
}

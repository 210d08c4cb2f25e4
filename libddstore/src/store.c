/* The store: opening it over a group or as an extra member, and freeing it. */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>

int ddstore__store_usable(const ddstore *store, ddstore_error *err)
{
    if (store->fork_generation != ddstore__fork_generation)
        return ddstore__fail(
            err, DDSTORE_EFORKED,
            "this store belongs to the parent process: in a forked child "
            "use fork_reader(), or open a store of its own");
    if (atomic_load(&store->closed))
        return ddstore__fail(err, DDSTORE_ECLOSED, "the store was freed");
    return DDSTORE_OK;
}

const char *ddstore__who(const ddstore *store)
{
    return store->reader ? "a reader (fork_reader)" : "an extra member";
}

/* What members tell each other first. */
#define HELLO_BYTES (32 + DDSTORE__CONTACT_BYTES + 4 + 64 + 8)

static void make_hello(const ddstore *store, uint8_t out[HELLO_BYTES])
{
    memset(out, 0, HELLO_BYTES);
    memcpy(out, store->access.ticket.run, 16);
    memcpy(out + 16, store->access.ticket.secret, 16);
    ddstore__contact_encode(&store->engine->self, out + 32);
    ddstore__put32(out + 32 + DDSTORE__CONTACT_BYTES, (uint32_t)store->method);
    snprintf((char *)out + 36 + DDSTORE__CONTACT_BYTES, 64, "%s",
             store->settings.fabric);
    ddstore__put64(out + 100 + DDSTORE__CONTACT_BYTES,
                   store->settings.alltoall_max_bytes);
}

static bool only_loopback(const ddstore__contact *c)
{
    for (int i = 0; i < DDSTORE__ADDRESSES; i++) {
        const ddstore__address *a = &c->address[i];
        if ((a->family == 4 && a->ip[0] != 127) ||
            (a->family == 6 &&
             !(a->ip[15] == 1 && !memcmp(a->ip, (uint8_t[15]){0}, 15))))
            return false;
    }
    return true;
}

int ddstore__check_reach(const ddstore *store, const ddstore__contact *contact,
                         int rank, ddstore_error *err)
{
    const ddstore__process *there = &contact->process;
    const ddstore__process *here = &store->engine->self.process;
    bool same_network =
        memcmp(there->boot_id, here->boot_id, 16) == 0 && there->net_ns == here->net_ns;
    if (same_network || !only_loopback(contact))
        return DDSTORE_OK;
    return ddstore__fail(
        err, DDSTORE_EFABRIC,
        "rank %d on host %s offers only its loopback address, which no "
        "other host reaches: bring a network interface up there",
        rank, there->host);
}

/* Compares rank r's hello with rank 0's. */
static int check_hello(const ddstore *store, const uint8_t *first, const uint8_t *p,
                       int r, const ddstore__contact *contact, ddstore_error *err)
{
    const size_t at = 32 + DDSTORE__CONTACT_BYTES;
    if (memcmp(p + at, first + at, 4) != 0)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "rank %d opens method %u, rank 0 method %u", r,
                             ddstore__get32(p + at), ddstore__get32(first + at));
    if (memcmp(p + at + 4, first + at + 4, 64) != 0)
        return ddstore__fail(
            err, DDSTORE_EFABRIC,
            "DDSTORE_FABRIC is %.63s on rank %d and %.63s on rank 0: set it "
            "alike",
            (const char *)p + at + 4, r, (const char *)first + at + 4);
    if (memcmp(p + at + 68, first + at + 68, 8) != 0)
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "DDSTORE_ALLTOALL_MAX_BYTES is %llu on rank %d and %llu on rank 0: set it "
            "alike",
            (unsigned long long)ddstore__get64(p + at + 68), r,
            (unsigned long long)ddstore__get64(first + at + 68));
    if (store->method == 0) /* MPI finds its own way */
        return DDSTORE_OK;
    ddstore__contact zero;
    (void)ddstore__contact_decode(first + 32, DDSTORE__CONTACT_BYTES, &zero);
    if (strcmp(contact->provider, zero.provider) != 0)
        return ddstore__fail(
            err, DDSTORE_EFABRIC,
            "rank %d (host %s) uses \"%s\" and rank 0 (host %s) \"%s\": set "
            "DDSTORE_FABRIC to one network that all hosts have",
            r, contact->process.host, *contact->provider ? contact->provider : "tcp",
            zero.process.host, *zero.provider ? zero.provider : "tcp");
    return ddstore__check_reach(store, contact, r, err);
}

static int meet_peers(ddstore *store, const ddstore__gathered *g, ddstore_error *err)
{
    size_t bytes;
    const uint8_t *first = ddstore__gathered_at(g, 0, &bytes);
    store->peer = calloc((size_t)store->size, sizeof(*store->peer));
    if (!store->peer)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %d peers",
                             store->size);
    store->n_peers = store->size;
    for (int r = 0; r < store->size; r++) {
        const uint8_t *p = ddstore__gathered_at(g, r, &bytes);
        ddstore__contact contact;
        if (bytes != HELLO_BYTES ||
            !ddstore__contact_decode(p + 32, DDSTORE__CONTACT_BYTES, &contact))
            return ddstore__fail(err, DDSTORE_ECONFLICT,
                                 "rank %d runs another version of this library", r);
        int rc = check_hello(store, first, p, r, &contact, err);
        if (rc)
            return rc;
        store->peer[r] = ddstore__peer_get(&contact, store->engine->self.uid);
        if (!store->peer[r])
            return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for rank %d", r);
    }
    memcpy(store->access.ticket.run, first, 16);
    memcpy(store->access.ticket.secret, first + 16, 16);
    return DDSTORE_OK;
}

/* This process's part: it knows the others, serves the run, and watches over waits. */
static int take_part(ddstore *store, const ddstore__gathered *hellos, uint8_t *maps_all,
                     ddstore_error *err)
{
    int rc = meet_peers(store, hellos, err);
    store->run =
        ddstore__run_open(store->access.ticket.run, store->access.ticket.secret);
    if (!rc && !store->run)
        rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory for the run");
    if (!rc)
        rc = ddstore__watch_begin(store, err);
    *maps_all = 1;
    for (int r = 0; !rc && r < store->size; r++)
        *maps_all &= ddstore__maps(store, r);
    return rc;
}

static int meet(ddstore *store, ddstore_error *err)
{
    uint8_t hello[HELLO_BYTES], maps_all = 0;
    ddstore__gathered g;
    ddstore_error mine;
    make_hello(store, hello);
    int rc = ddstore__store_agree(store, NULL, "opening the store", hello,
                                  sizeof(hello), &g, err);
    if (!rc) {
        int met = take_part(store, &g, &maps_all, &mine);
        ddstore__gathered_free(&g);
        /* Nobody asks a member before it serves the run; hosts may judge differently.
         */
        rc = ddstore__store_agree(store, met ? &mine : NULL, "opening the store",
                                  &maps_all, 1, &g, err);
    }
    for (int r = 0; !rc && r < store->size; r++) {
        size_t bytes;
        store->windows |= store->method == 0 && !*ddstore__gathered_at(&g, r, &bytes);
    }
    ddstore__gathered_free(&g);
    if (!rc)
        ddstore__log_paths(store);
    return rc;
}

static int check_options(const ddstore_options *o, enum ddstore__kind kind,
                         ddstore_error *err)
{
    if (!o || o->struct_bytes != sizeof(*o))
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "the options are of another version of this library");
    if (kind == DDSTORE__OVER_MPI ? o->method != 0 : o->method != 1 && o->method != 2)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "method is %d: give 1 or 2 (0 needs an MPI communicator)",
                             o->method);
    if (kind == DDSTORE__EXTRA && o->method != 2)
        return ddstore__fail(err, DDSTORE_EINVAL, "an extra member needs method 2");
    if (o->n_core < 0)
        return ddstore__fail(err, DDSTORE_EINVAL, "n_core is %d: give 0 or more",
                             o->n_core);
    return DDSTORE_OK;
}

int ddstore__store_begin(const ddstore_options *o, enum ddstore__kind kind,
                         ddstore **out, ddstore_error *err)
{
    int rc = check_options(o, kind, err);
    if (rc)
        return rc;
    ddstore *store = calloc(1, sizeof(*store));
    if (!store)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a store");
    pthread_mutex_init(&store->lock, NULL);
    pthread_mutex_init(&store->attach_lock, NULL);
    ddstore__registry_open(&store->registry);
    store->fork_generation = ddstore__fork_generation;
    store->method = o->method;
    store->n_core = o->n_core;
    store->rank = -1;
    store->core = kind == DDSTORE__CORE || kind == DDSTORE__OVER_MPI;
    store->reader = kind == DDSTORE__READER;
    snprintf(store->ns, sizeof(store->ns), "%s", o->exchange_ns ? o->exchange_ns : "");
    *out = store;
    rc = ddstore__settings_load(&store->settings, o->settings, o->n_settings, err);
    if (!rc)
        rc = ddstore__engine_acquire(&store->settings, kind != DDSTORE__OVER_MPI,
                                     &store->engine, err);
    if (rc)
        return rc;
    const ddstore__settings *s = &store->settings;
    bool ofi = kind != DDSTORE__OVER_MPI && strcmp(s->fabric, "tcp") &&
               strcmp(s->fabric, "hsn");
    store->access = (ddstore__access){
        .patience = {(int64_t)(s->read_timeout_s * 1e9), &store->closed},
        .ofi = ofi ? store->engine->ofi : NULL,
        .map = s->shm,
    };
    ddstore__random(store->access.ticket.run, 16);
    ddstore__random(store->access.ticket.secret, 16);
    memcpy(store->access.ticket.uid, store->engine->self.uid, 16);
    return DDSTORE_OK;
}

static int open_dir(ddstore *store, const ddstore_options *o, bool create,
                    ddstore_error *err)
{
    const char *dir = o->handshake_dir && *o->handshake_dir
                          ? o->handshake_dir
                          : store->settings.handshake_dir;
    if (!*dir)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "method 2 needs a directory: give handshake_dir or set "
                             "DDSTORE_HANDSHAKE_DIR");
    return ddstore__dir_open(dir, create, &store->dir, err);
}

/* The collective part. A member whose own part failed (rc, mine) still takes part. */
static int open_over(ddstore *store, ddstore_comm *comm, int rc,
                     const ddstore_error *mine, ddstore **out, ddstore_error *err)
{
    ddstore__gathered g;
    ddstore stub = {0};
    ddstore *member = store ? store : &stub;
    member->comm = comm;
    member->rank = ddstore_comm_rank(comm);
    member->size = ddstore_comm_size(comm);
    int agreed = ddstore__store_agree(member, rc ? mine : NULL, "opening the store",
                                      NULL, 0, &g, err);
    ddstore__gathered_free(&g);
    if (rc) /* this member's own words, not those that travelled */
        agreed = ddstore__fail(err, rc, "opening the store failed on rank %d: %s",
                               member->rank, mine->message);
    rc = agreed || !store ? agreed : meet(store, err);
    if (!rc)
        *out = store;
    else if (store)
        ddstore_close(store);
    else
        ddstore_comm_close(comm);
    return rc;
}

int ddstore_open(ddstore_comm *comm, const ddstore_options *options, ddstore **out,
                 ddstore_error *err)
{
    ddstore *store = NULL;
    ddstore_error mine;
    int rc = ddstore__store_begin(options, DDSTORE__CORE, &store, &mine);
    if (!rc && options->method == 2)
        rc = open_dir(store, options, true, &mine);
    return open_over(store, comm, rc, &mine, out, err);
}

int ddstore_open_failed(ddstore_comm *comm, const ddstore_error *why,
                        ddstore_error *err)
{
    ddstore *none = NULL;
    return open_over(NULL, comm, why->code, why, &none, err);
}

int ddstore_open_mpi_calls(const ddstore_mpi_calls *calls,
                           const ddstore_options *options, ddstore **out,
                           ddstore_error *err)
{
    ddstore *store = NULL;
    ddstore_comm *comm = NULL;
    ddstore_error mine;
    if (!calls || calls->struct_bytes != sizeof(*calls))
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "libddstore_mpi is of another version than libddstore");
    int rc = ddstore__store_begin(options, DDSTORE__OVER_MPI, &store, &mine);
    ddstore_comm_callbacks meeting = calls->comm;
    if (store && meeting.timeout_s == 0)
        meeting.timeout_s = store->settings.handshake_timeout_s;
    int met = ddstore_comm_open_callbacks(&meeting, &comm, err);
    if (met) {
        ddstore_close(store);
        return met;
    }
    if (!rc) {
        store->mpi = *calls;
        store->access.mpi = &store->mpi;
    }
    return open_over(store, comm, rc, &mine, out, err);
}

/* Asks the holder of a claim whether it still serves. */
static int claim_alive(const void *theirs, size_t bytes)
{
    const uint8_t *p = theirs, nobody[16] = {0};
    ddstore__contact contact;
    ddstore__ticket ticket = {{0}, {0}, {0}};
    ddstore__patience patience = {2 * DDSTORE__S, NULL, .probe = true};
    if (bytes != DDSTORE__CLAIM_CONTACT ||
        !ddstore__contact_decode(p + 32, DDSTORE__CONTACT_BYTES, &contact))
        return -1;
    memcpy(ticket.run, p, 16);
    memcpy(ticket.secret, p + 16, 16);
    ddstore__peer *peer = ddstore__peer_get(&contact, nobody);
    if (!peer)
        return -1;
    int rc = ddstore__channel_ask(peer, &ticket, &patience, DDSTORE__PING, NULL, NULL,
                                  NULL, NULL);
    ddstore__peer_put(peer);
    return rc == DDSTORE_OK ? 1
                            : -1; /* silence may be the network's: the counter tells */
}

int ddstore_open_file(const ddstore_comm_file *how, const ddstore_options *options,
                      ddstore **out, ddstore_error *err)
{
    ddstore *store = NULL;
    ddstore_comm *comm = NULL;
    ddstore_error mine;
    uint8_t contact[DDSTORE__CLAIM_CONTACT];
    int rc = ddstore__store_begin(options, DDSTORE__CORE, &store, &mine);
    if (!rc && options->method == 2)
        rc = open_dir(store, options, true, &mine);
    ddstore__contact_probe probe = {contact, rc ? 0 : sizeof(contact), claim_alive};
    if (!rc) {
        memcpy(contact, store->access.ticket.run, 16);
        memcpy(contact + 16, store->access.ticket.secret, 16);
        ddstore__contact_encode(&store->engine->self, contact + 32);
    }
    /* A member whose settings are bad tells the others, by what could be read of them.
     */
    ddstore_comm_file with = *how;
    if (store && with.timeout_s == 0)
        with.timeout_s = store->settings.handshake_timeout_s;
    int met = ddstore__comm_open_file(&with, &probe, &comm, err);
    if (met) {
        ddstore_close(store);
        return rc ? ddstore__fail(err, rc, "%s", mine.message) : met;
    }
    return open_over(store, comm, rc, &mine, out, err);
}

int ddstore_open_extra(const ddstore_options *options, ddstore **out,
                       ddstore_error *err)
{
    ddstore *store = NULL;
    int rc = ddstore__store_begin(options, DDSTORE__EXTRA, &store, err);
    if (!rc) {
        rc = open_dir(store, options, false, err);
        if (rc == DDSTORE_EKEY) { /* it may come: join() opens it */
            rc = DDSTORE_OK;
            store->dir = NULL;
        }
    }
    if (!rc) {
        const char *dir = options->handshake_dir && *options->handshake_dir
                              ? options->handshake_dir
                              : store->settings.handshake_dir;
        store->extra_dir = strdup(dir);
        if (!store->extra_dir)
            rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a store");
    }
    if (rc) {
        if (store)
            ddstore_close(store);
        return rc;
    }
    *out = store;
    return DDSTORE_OK;
}

void ddstore_free(ddstore *store)
{
    if (!store || store->fork_generation != ddstore__fork_generation ||
        atomic_exchange(&store->closed, 1))
        return;
    if (store->comm)
        ddstore_comm_wake(store->comm);
    ddstore__run *run = store->run ? ddstore__run_find(store->access.ticket.run) : NULL;
    if (store->run && store->dir)
        ddstore__unpublish_all(store);
    for (ddstore_var *v = atomic_load(&store->vars); v; v = v->next)
        if (v->own) {
            ddstore__segment_ref(v->own); /* mapped until its readers here are done */
            ddstore__segment_withdraw(v->own);
        }
    ddstore__run_close(store->run);
    int64_t deadline = ddstore__after_s(store->settings.read_timeout_s);
    bool quiet = ddstore__reader_wait(store, deadline);
    if (!quiet)
        ddstore__log(DDSTORE_LOG_WARN,
                     "a read still runs in a store being freed: its memory "
                     "is left mapped");
    atomic_store(&store->torn_down, quiet ? 1 : 2);
    for (ddstore_var *v = atomic_load(&store->vars); quiet && v; v = v->next)
        ddstore__var_detach(v);
    if (!quiet)
        return;
    ddstore__registry_close(&store->registry, store->access.ofi);
    if (run)
        ddstore__run_unref(run);
    store->run = NULL;
    ddstore_comm_close(store->comm); /* its namespace may be taken again */
    store->comm = NULL;
}

void ddstore_close(ddstore *store)
{
    if (!store || store->fork_generation != ddstore__fork_generation)
        return;
    ddstore_free(store);
    bool quiet = atomic_load(&store->torn_down) == 1;
    for (ddstore_var *v = quiet ? atomic_load(&store->vars) : NULL, *next; v;
         v = next) {
        next = v->next;
        ddstore__var_free(v);
    }
    for (int r = 0; r < store->n_peers; r++)
        ddstore__peer_put(store->peer[r]);
    free(store->peer);
    free(store->roll.absent);
    ddstore_comm_close(store->comm);
    ddstore__dir_close(store->dir);
    free(store->extra_dir);
    ddstore__engine_release(store->engine);
    ddstore__settings_free(&store->settings);
    if (quiet)
        free(store);
}

int ddstore_rank(const ddstore *store)
{
    return store->rank;
}

int ddstore_size(const ddstore *store)
{
    return store->size;
}

/* How the core ranks are reached, and whether they still serve. */
#include "store.h"

#include <stdio.h>

int ddstore__check_provider(const ddstore *store, const ddstore__contact *contact,
                            ddstore_error *err)
{
    const char *mine =
        store->access.ofi ? ddstore__ofi_provider(store->access.ofi) : "";
    const char *theirs = contact->provider;
    if (!store->access.ofi || strcmp(mine, theirs) == 0)
        return DDSTORE_OK;
    return ddstore__fail(err, DDSTORE_EFABRIC,
                         "this member uses \"%s\" and the core group \"%s\": set "
                         "DDSTORE_FABRIC alike",
                         mine, *theirs ? theirs : "tcp");
}

/* How ranks are read whose memory isn't mapped, and by what. */
static const char *far_path(const ddstore *store)
{
    return store->access.mpi ? "mpi" : store->access.ofi ? "rdma" : "tcp";
}

static const char *far_provider(const ddstore *store)
{
    return store->access.mpi   ? store->mpi.library
           : store->access.ofi ? ddstore__ofi_provider(store->access.ofi)
                               : "tcp";
}

bool ddstore__maps(const ddstore *store, int rank)
{
    return store->peer[rank]->self ||
           (store->access.map && store->peer[rank]->mappable);
}

void ddstore__log_paths(const ddstore *store)
{
    int local = 0, far = 0;
    for (int r = 0; r < store->size; r++) {
        bool mapped = ddstore__maps(store, r);
        local += mapped;
        far += !mapped;
        if (!mapped)
            ddstore__log(DDSTORE_LOG_INFO, "rank %d on host %s is read by %s: %s", r,
                         store->peer[r]->contact.process.host, far_path(store),
                         store->access.map ? store->peer[r]->why : "DDSTORE_SHM=0");
    }
    ddstore__log(
        DDSTORE_LOG_INFO,
        "store %s: %srank %d of %d on host %s, interface %s; %d ranks by mapping, %d "
        "by %s",
        *store->ns ? store->ns : "(unnamed)", store->reader ? "reader for " : "",
        store->rank, store->size, store->engine->self.process.host,
        store->engine->iface, local, far, far_provider(store));
}

int ddstore_peer_at(ddstore *store, int i, ddstore_peer_info *out)
{
    if (store->fork_generation != ddstore__fork_generation)
        return DDSTORE_EFORKED; /* the lock may be held for ever */
    pthread_mutex_lock(&store->lock);
    bool known = i >= 0 && i < store->n_peers && store->peer[i];
    if (known) {
        const ddstore__peer *p = store->peer[i];
        bool mapped = ddstore__maps(store, i);
        *out = (ddstore_peer_info){.rank = i, .pid = p->contact.process.pid};
        snprintf(out->host, sizeof(out->host), "%s", p->contact.process.host);
        snprintf(out->path, sizeof(out->path), "%s",
                 p->self  ? "self"
                 : mapped ? "local"
                          : far_path(store));
        snprintf(out->provider, sizeof(out->provider), "%s",
                 mapped ? "mapping" : far_provider(store));
        snprintf(out->reason, sizeof(out->reason), "%s",
                 mapped || store->access.map ? p->why : "DDSTORE_SHM=0");
        snprintf(out->state, sizeof(out->state), "%s",
                 atomic_load(&p->lost) ? "lost" : "alive");
    }
    pthread_mutex_unlock(&store->lock);
    return known ? DDSTORE_OK : DDSTORE_EINDEX;
}

/* A core rank 0 to ask, with a reference; NULL: one of the core ranks is lost already.
 */
static ddstore__peer *core_to_ask(ddstore *store, ddstore__ticket *ticket)
{
    ddstore__peer *first = NULL;
    pthread_mutex_lock(&store->lock);
    bool lost = false;
    for (int i = 0; i < store->n_peers; i++)
        lost |= atomic_load(&store->peer[i]->lost) != 0;
    if (!lost && store->n_peers)
        first = ddstore__peer_get(&store->peer[0]->contact, store->engine->self.uid);
    *ticket = store->comm ? store->access.ticket : store->core_ticket;
    pthread_mutex_unlock(&store->lock);
    return first;
}

int ddstore_core_alive(ddstore *store, int *alive, ddstore_error *err)
{
    *alive = 0;
    int rc = ddstore__store_usable(store, err);
    if (rc)
        return rc;
    if (!store->n_peers)
        return ddstore__fail(err, DDSTORE_EINVAL, "no variable was joined yet");
    ddstore__ticket ticket;
    ddstore_error why;
    ddstore__peer *first = core_to_ask(store, &ticket);
    if (!first)
        return DDSTORE_OK;
    rc = ddstore__channel_ask(first, &ticket, &store->access.patience, DDSTORE__PING,
                              NULL, NULL, NULL, &why);
    ddstore__peer_put(first);
    if (rc == DDSTORE_EINTR || (rc && atomic_load(&store->closed)))
        return ddstore__fail(err, rc, "%s", why.message);
    *alive = rc == DDSTORE_OK;
    return DDSTORE_OK;
}

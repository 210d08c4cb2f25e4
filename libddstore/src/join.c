/* Method 2, an extra member: waiting until a living core group publishes a variable, in
 * its file or by the claim's holder, and attaching to it. */
#include "published.h"

#include <stdio.h>
#include <stdlib.h>

#define LOG_NS     (10 * DDSTORE__S)
#define BACKOFF_NS (500 * DDSTORE__MS)
#define SLICE_NS   (125 * DDSTORE__MS) /* without a look at whether to go on */
#define CLAIMS_NS  DDSTORE__S /* between two times of asking the holders of claims */
#define KEPT       4          /* peers that a search goes on to ask */

struct search {
    ddstore *store;
    const char *name;
    char file[DDSTORE__RECORD_NAME];
    char seen[1024]; /* what was found instead, for the log and the error */
    ddstore__wait wait;
    int64_t claims_ns;         /* when claims are asked next */
    ddstore__peer *kept[KEPT]; /* so that their channels last to the next look */
    unsigned n_kept;
};

/* Takes over the caller's reference. */
static void keep(struct search *s, ddstore__peer *peer)
{
    ddstore__peer **slot = &s->kept[s->n_kept++ % KEPT];
    ddstore__peer_put(*slot);
    *slot = peer;
}

static void keep_none(struct search *s)
{
    for (unsigned i = 0; i < KEPT; i++)
        ddstore__peer_put(s->kept[i]);
}

/* The first rank that is known to be lost; -1: none. A run that has lost one is about
 * to end, and another may take its place: joining it would only let the next read fail.
 */
static int lost_rank(const struct search *s, const ddstore__variable_record *r,
                     ddstore_error *why)
{
    int rank = -1;
    for (int i = 0; i < r->ranks && rank < 0; i++) {
        ddstore__peer *peer =
            ddstore__peer_get(&r->rank[i].contact, s->store->engine->self.uid);
        if (peer && atomic_load(&peer->lost)) {
            ddstore__peer_tell_lost(peer, why);
            rank = i;
        }
        ddstore__peer_put(peer);
    }
    return rank;
}

static int check_record(struct search *s, const ddstore__variable_record *r,
                        ddstore_error *err)
{
    if (strcmp(r->name, s->name) != 0) {
        snprintf(s->seen, sizeof(s->seen), "%s holds variable %.200s", s->file,
                 r->name);
        return DDSTORE_EKEY;
    }
    if (s->store->n_core && s->store->n_core != r->ranks)
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "n_core is %d, and the core group of variable %s has %d ranks",
            s->store->n_core, s->name, r->ranks);
    ddstore_error why;
    keep(s, ddstore__peer_get(&r->rank[0].contact, s->store->engine->self.uid));
    int rc = ddstore__check_reach(s->store, &r->rank[0].contact, 0, &why);
    if (!rc)
        rc = ddstore__record_greet(s->store, r, &s->wait, &why);
    if (rc == DDSTORE_EINTR ||
        (rc == DDSTORE_ECLOSED && atomic_load(&s->store->closed)))
        return ddstore__fail(err, rc, "%s", why.message);
    if (rc) {
        snprintf(s->seen, sizeof(s->seen),
                 "%s is of a run that doesn't answer (%.300s)", s->file, why.message);
        return DDSTORE_EKEY;
    }
    int lost = lost_rank(s, r, &why);
    if (lost >= 0) {
        snprintf(s->seen, sizeof(s->seen),
                 "%s is of a run that has lost rank %d (%.300s)", s->file, lost,
                 why.message);
        return DDSTORE_EKEY;
    }
    for (int i = 1; !rc && i < r->ranks; i++)
        rc = ddstore__check_reach(s->store, &r->rank[i].contact, i, err);
    return rc;
}

/* Asks a claim's holder for the record of the name. */
static int ask_claim(struct search *s, const ddstore__claim *claim,
                     ddstore__variable_record *out)
{
    const uint8_t *p = claim->contact;
    ddstore__contact contact;
    ddstore__ticket ticket = s->store->access.ticket;
    ddstore__patience patience = ddstore__sign_of_life(s->store, &s->wait);
    uint8_t *data;
    size_t bytes;
    if (claim->contact_bytes != DDSTORE__CLAIM_CONTACT ||
        !ddstore__contact_decode(p + 32, DDSTORE__CONTACT_BYTES, &contact))
        return DDSTORE_EKEY;
    memcpy(ticket.run, p, 16);
    memcpy(ticket.secret, p + 16, 16);
    ddstore__peer *peer = ddstore__peer_get(&contact, s->store->engine->self.uid);
    if (!peer)
        return DDSTORE_ENOMEM;
    ddstore_error why;
    int rc = ddstore__channel_ask(peer, &ticket, &patience, DDSTORE__RECORD, s->name,
                                  &data, &bytes, &why);
    keep(s, peer);
    if (rc) {
        snprintf(s->seen, sizeof(s->seen), "group %s of process %u on host %s: %.300s",
                 claim->ns, claim->holder.pid, claim->holder.host, why.message);
        return rc;
    }
    rc = ddstore__record_decode(data, bytes, out);
    free(data);
    if (rc)
        ddstore__record_free(out);
    return rc;
}

static int ask_claims(struct search *s, ddstore__variable_record *out,
                      ddstore_error *err)
{
    ddstore__claim *claims;
    size_t n;
    int rc = ddstore__claims_read(ddstore__dir_path(s->store->dir), &claims, &n, err);
    if (rc)
        return rc;
    rc = DDSTORE_EKEY;
    for (size_t i = 0; i < n && rc; i++)
        if (ddstore__process_alive(&claims[i].holder) != 0)
            rc = ask_claim(s, &claims[i], out);
    ddstore__claims_free(claims, n);
    return rc ? DDSTORE_EKEY : DDSTORE_OK;
}

/* One look. DDSTORE_EKEY: not yet. */
static int look(struct search *s, ddstore__variable_record *out, ddstore_error *err)
{
    ddstore *store = s->store;
    if (!store->dir) {
        const char *path = store->extra_dir;
        int rc = ddstore__dir_open(path, false, &store->dir, err);
        if (rc == DDSTORE_EKEY)
            snprintf(s->seen, sizeof(s->seen), "the directory isn't there");
        if (rc)
            return rc;
    }
    ddstore_error why;
    ddstore__dir_refresh(store->dir);
    int rc = ddstore__record_read(store->dir, s->file, out, &why);
    if (rc == DDSTORE_OK) {
        rc = check_record(s, out, err);
        if (rc != DDSTORE_EKEY)
            return rc;
        ddstore__record_free(out);
    } else if (rc == DDSTORE_EKEY) {
        snprintf(s->seen, sizeof(s->seen), "there is no %s", s->file);
    } else {
        snprintf(s->seen, sizeof(s->seen), "%.400s", why.message);
    }
    if (ddstore__now_ns() < s->claims_ns)
        return DDSTORE_EKEY;
    s->claims_ns = ddstore__now_ns() + CLAIMS_NS;
    rc = ask_claims(s, out, err);
    return rc ? rc : check_record(s, out, err);
}

/* 0, or why the wait ended. */
static int rest(const struct search *s, int64_t ns, ddstore_error *err)
{
    int64_t until = ddstore__now_ns() + ns;
    for (;;) {
        int rc = ddstore__wait_check(&s->wait, err);
        int64_t left = until - ddstore__now_ns();
        if (rc || left <= 0)
            return rc;
        ddstore__sleep_ns(left < SLICE_NS ? left : SLICE_NS);
    }
}

static int search_record(struct search *s, ddstore__variable_record *out,
                         ddstore_error *err)
{
    int64_t pause = DDSTORE__MS, next_log = ddstore__now_ns() + LOG_NS;
    for (;;) {
        int rc = look(s, out, err);
        if (rc != DDSTORE_EKEY)
            return rc;
        ddstore__record_free(out);
        rc = rest(s, pause, err);
        if (rc == DDSTORE_ETIMEDOUT)
            return ddstore__fail(
                err, rc,
                "no living core group published variable %s in %s within "
                "%g s (DDSTORE_HANDSHAKE_TIMEOUT_S): %s",
                s->name, s->store->extra_dir, s->store->settings.handshake_timeout_s,
                s->seen);
        if (rc)
            return rc;
        if (ddstore__now_ns() >= next_log) {
            next_log += LOG_NS;
            ddstore__log(DDSTORE_LOG_WARN, "join of variable %s waits in %s: %s",
                         s->name, s->store->extra_dir, s->seen);
        }
        pause = pause * 2 < BACKOFF_NS ? pause * 2 : BACKOFF_NS;
    }
}

/* Whether a variable joined before is of the same run and segments. */
static bool is_same(const ddstore_var *var, const ddstore__variable_record *r)
{
    if (!var || var->ranks != r->ranks ||
        !ddstore__same16(var->access.ticket.run, r->run))
        return false;
    for (int i = 0; i < r->ranks; i++)
        if (var->part[i].at.id != r->rank[i].at.id)
            return false;
    return true;
}

static int take_peers(ddstore *store, const ddstore__variable_record *r,
                      ddstore_error *err)
{
    ddstore__peer **peer = calloc((size_t)r->ranks, sizeof(*peer));
    if (!peer)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %d peers", r->ranks);
    for (int i = 0; i < r->ranks; i++)
        peer[i] = ddstore__peer_get(&r->rank[i].contact, store->engine->self.uid);
    pthread_mutex_lock(&store->lock);
    ddstore__peer **old = store->peer;
    int n_old = store->n_peers;
    store->peer = peer;
    store->n_peers = store->size = r->ranks;
    pthread_mutex_unlock(&store->lock);
    for (int i = 0; i < n_old; i++)
        ddstore__peer_put(old[i]);
    free(old);
    return DDSTORE_OK;
}

static int join(ddstore *store, const char *name, ddstore_var **out, ddstore_error *err)
{
    ddstore__variable_record record = {0};
    int rc = ddstore__store_usable(store, err);
    if (!rc && store->reader)
        rc = ddstore__fail(err, DDSTORE_EINVAL,
                           "a reader has the variables that there were when it was "
                           "made, it can't join others: make another by fork_reader()");
    if (!rc && store->comm)
        rc = ddstore__fail(err, DDSTORE_EINVAL,
                           "join is for extra members: this store is "
                           "of a core group, which adds variables");
    if (!rc)
        rc = ddstore__check_name(name, err);
    if (rc)
        return rc;
    struct search s = {
        .store = store,
        .name = name,
        .wait = {ddstore__after_s(store->settings.handshake_timeout_s), &store->closed},
    };
    ddstore__record_name(name, s.file);
    rc = search_record(&s, &record, err);
    keep_none(&s);
    if (!rc)
        rc = ddstore__check_provider(store, &record.rank[0].contact, err);
    ddstore_var *var = ddstore_find(store, name);
    if (!rc && !is_same(var, &record)) {
        ddstore__ticket ticket = store->access.ticket;
        memcpy(ticket.run, record.run, 16);
        memcpy(ticket.secret, record.secret, 16);
        rc = ddstore__var_make(store, &record, &ticket, &var, err);
        if (!rc)
            rc = take_peers(store, &record, err);
        if (!rc)
            ddstore__var_enter(store, var);
    }
    if (!rc) {
        pthread_mutex_lock(&store->lock);
        store->core_ticket = var->access.ticket;
        pthread_mutex_unlock(&store->lock);
        if (out)
            *out = var;
    }
    ddstore__record_free(&record);
    return rc;
}

int ddstore_join(ddstore *store, const char *name, ddstore_var **out,
                 ddstore_error *err)
{
    ddstore__reader *reader = ddstore__reader_enter(store);
    if (!reader)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory to join a variable");
    int rc = join(store, name, out, err);
    ddstore__reader_leave(reader); /* freeing the store waits for it */
    return rc;
}

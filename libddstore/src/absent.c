/* Who keeps a collective waiting: every member's progress thread tells how many of them
 * it has entered, whatever its program does meanwhile. */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>

#define ASK_AFTER (1 * DDSTORE__S) /* of waiting; then all are asked once a second */
#define LOG_EVERY (10 * DDSTORE__S)
#define GRACE     (1 * DDSTORE__S) /* the last words of who is gone may be under way */
#define SHARE     4                /* of the time that asking takes is waited besides */

static void begin(ddstore__roll *roll, int size, int64_t begun_ns)
{
    roll->begun_ns = begun_ns;
    roll->next_ask_ns = begun_ns + ASK_AFTER;
    roll->next_log_ns = begun_ns + LOG_EVERY;
    roll->failed_ns = 0;
    roll->next = 0;
    roll->complete = false;
    memset(roll->absent, 0, (size_t)size * sizeof(*roll->absent));
}

/* A process that lives and listens no more has freed its last store. */
static int lost(ddstore__peer *peer, ddstore_error *err)
{
    if (peer->same_host && ddstore__process_alive(&peer->contact.process) == 1)
        return ddstore__fail(err, DDSTORE_ECLOSED,
                             "its store was freed, process %u on host %s goes on",
                             peer->contact.process.pid, peer->contact.process.host);
    return ddstore__peer_lost_error(peer, err);
}

/* Asks one rank how many collectives it has entered. DDSTORE_ECLOSED or DDSTORE_EPEER:
 * it won't enter any more. Silence proves nothing: 0, and *steps is 0. */
static int ask(ddstore *store, int rank, uint64_t *steps, ddstore_error *err)
{
    ddstore__peer *peer = store->peer[rank];
    ddstore__patience patience = {DDSTORE__S / 2, &store->closed, .probe = true};
    uint8_t *answer = NULL;
    size_t bytes = 0;
    *steps = 0;
    int rc = ddstore__channel_ask(peer, &store->access.ticket, &patience, DDSTORE__PING,
                                  NULL, &answer, &bytes, err);
    if (!rc && bytes == 8)
        *steps = ddstore__get64(answer);
    free(answer);
    if (rc == DDSTORE_ECLOSED && !atomic_load(&store->closed))
        return rc;
    return rc && atomic_load(&peer->lost) ? lost(peer, err) : DDSTORE_OK;
}

static int gone_with(ddstore *store, int rank, uint64_t *steps, ddstore_error *err)
{
    int rc = ask(store, rank, steps, err);
    return rc ? ddstore__wrap(err, rc, "a collective call can't end: rank %d", rank)
              : rc;
}

static int gone(void *arg, int rank, ddstore_error *err)
{
    uint64_t steps;
    return gone_with(arg, rank, &steps, err);
}

static void note(ddstore *store, int rank)
{
    ddstore__roll *roll = &store->roll;
    uint64_t steps;
    if (store->peer[rank]->self)
        return;
    if (gone_with(store, rank, &steps, &roll->fault))
        roll->failed_ns = ddstore__now_ns();
    roll->absent[rank] = steps < atomic_load(&store->run->steps);
}

static void ask_next(ddstore *store)
{
    ddstore__roll *roll = &store->roll;
    int64_t begin_ns = ddstore__now_ns();
    note(store, roll->next);
    int64_t now = ddstore__now_ns();
    roll->next_ask_ns = now + SHARE * (now - begin_ns);
    if (++roll->next < store->size)
        return;
    roll->next = 0;
    roll->complete = true;
    if (roll->next_ask_ns < now + ASK_AFTER)
        roll->next_ask_ns = now + ASK_AFTER;
}

/* "rank 1 (host a), rank 7 (host b), ..." as far as it fits. */
static void missing(void *arg, char *text, size_t bytes)
{
    const ddstore *store = arg;
    const ddstore__roll *roll = &store->roll;
    size_t used = 0;
    *text = '\0';
    for (int r = 0; r < store->size && used + 120 < bytes; r++)
        if (roll->complete && roll->absent[r])
            used += (size_t)snprintf(text + used, bytes - used, "%srank %d (host %s)",
                                     used ? ", " : "", r,
                                     store->peer[r]->contact.process.host);
}

static void log_missing(const ddstore *store)
{
    char names[1024];
    missing((void *)(uintptr_t)store, names, sizeof(names));
    ddstore__log(DDSTORE_LOG_WARN,
                 "store %s, rank %d: a collective call waits for %.0f s now, for %s",
                 *store->ns ? store->ns : "(unnamed)", store->rank,
                 (double)(ddstore__now_ns() - store->roll.begun_ns) / 1e9,
                 *names ? names : "data under way");
}

static int look(void *arg, int64_t begun_ns, ddstore_error *err)
{
    ddstore *store = arg;
    ddstore__roll *roll = &store->roll;
    int64_t now = ddstore__now_ns();
    if (roll->begun_ns != begun_ns)
        begin(roll, store->size, begun_ns);
    if (roll->failed_ns && now - roll->failed_ns >= GRACE)
        return ddstore__fail(err, roll->fault.code, "%s", roll->fault.message);
    if (!roll->failed_ns && now >= roll->next_ask_ns)
        ask_next(store);
    if (now >= roll->next_log_ns && roll->complete) {
        log_missing(store);
        roll->next_log_ns = now + LOG_EVERY;
    }
    return DDSTORE_OK;
}

int ddstore__watch_begin(ddstore *store, ddstore_error *err)
{
    store->roll.absent = calloc((size_t)store->size, sizeof(*store->roll.absent));
    if (!store->roll.absent)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %d ranks",
                             store->size);
    store->watch =
        (ddstore__watch){.look = look, .gone = gone, .missing = missing, .arg = store};
    store->comm->watch = &store->watch;
    store->comm->steps = &store->run->steps;
    return DDSTORE_OK;
}

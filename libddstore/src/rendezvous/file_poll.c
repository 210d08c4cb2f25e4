/* Waiting for files to appear: quick at first, then slower, with a deadline, and a look
 * at whether those who should write them still live. */
#include "file.h"

#include <stdio.h>

#define PAUSE_LONGEST (250 * DDSTORE__MS)
#define SLICE                                                                          \
    (125 * DDSTORE__MS) /* the longest sleep without a look at the close flag */
#define CHECK_EVERY   (20 * DDSTORE__MS) /* the host's interrupt check may be dear */
#define FOREIGN_GRACE (3 * DDSTORE__S)

/* Large groups take long to come together: many members looking often would slow it. */
void ddstore__poll_restart(ddstore__poll *p)
{
    int64_t size = p->f->base.size;
    p->pause = size <= 16 ? DDSTORE__MS / 30 : size * (DDSTORE__MS / 100);
}

static int64_t watch_gap(const ddstore__poll *p)
{
    int64_t gap = p->f->base.size * (10 * DDSTORE__MS);
    return gap > DDSTORE__S ? gap : DDSTORE__S;
}

void ddstore__poll_begin(ddstore__poll *p, ddstore__file *f, int64_t deadline_ns)
{
    memset(p, 0, sizeof(*p));
    p->f = f;
    p->wait.deadline_ns = deadline_ns;
    p->wait.closed = &f->base.closed;
    p->begun = ddstore__now_ns();
    p->next_log = p->begun + 10 * DDSTORE__S;
    p->next_watch = p->begun + watch_gap(p);
    p->next_blind = p->begun + watch_gap(p);
    ddstore__poll_restart(p);
}

int ddstore__poll_pause(ddstore__poll *p, ddstore_error *err)
{
    int64_t left = p->pause, now = ddstore__now_ns();
    p->pause += p->pause * 2 / 5;
    if (p->pause > PAUSE_LONGEST)
        p->pause = PAUSE_LONGEST;
    do {
        if (now >= p->next_check || now >= p->wait.deadline_ns ||
            atomic_load(&p->f->base.closed)) {
            int rc = ddstore__wait_check(&p->wait, err);
            if (rc)
                return rc;
            p->next_check = now + CHECK_EVERY;
        }
        int64_t slice = left < SLICE ? left : SLICE;
        if (p->wait.deadline_ns - now < slice)
            slice = p->wait.deadline_ns - now;
        ddstore__sleep_ns(slice > 0 ? slice : 1);
        left -= slice > 0 ? slice : left;
        now = ddstore__now_ns();
    } while (left > 0);
    return DDSTORE_OK;
}

static bool due(int64_t *next, int64_t gap)
{
    int64_t now = ddstore__now_ns();
    if (now < *next)
        return false;
    *next = now + gap;
    return true;
}

bool ddstore__poll_log_due(ddstore__poll *p)
{
    return due(&p->next_log, 10 * DDSTORE__S);
}

bool ddstore__poll_watch_due(ddstore__poll *p)
{
    return due(&p->next_watch, watch_gap(p));
}

/* Ever more seldom: a listing that stays stale for long is a rare thing. */
bool ddstore__poll_blind_due(ddstore__poll *p)
{
    return due(&p->next_blind, ddstore__now_ns() - p->begun);
}

/* -- followers: is there still somebody to wait for? -- */

int ddstore__poll_gone(ddstore__poll *p, uint32_t rank, const ddstore__process *who,
                       ddstore_error *err)
{
    const ddstore__watch *watch = p->f->base.watch;
    if (!watch || ddstore__process_alive(who) >= 0)
        return DDSTORE_OK;
    return watch->gone(watch->arg, (int)rank, err);
}

/* What err says stands only if a last look finds no result. */
static int over(const ddstore__file *f, const char *what, ddstore_error *err)
{
    ddstore__fill(
        err, DDSTORE_EPEER,
        "rank 0 (%s:%u) %s before rank %d could read the result of step %llu in "
        "%s: the group can't go on; close it",
        f->lead.host, f->lead.pid, what, f->base.rank, (unsigned long long)f->seq,
        ddstore__dir_path(f->dir));
    return 1;
}

static int watch_met(ddstore__poll *p, ddstore_error *err)
{
    ddstore__file *f = p->f;
    char name[DDSTORE__CLAIM_NAME];
    ddstore__claim_seen seen;
    if (ddstore__process_alive(&f->lead) == 0)
        return over(f, "is gone", err);
    ddstore__claim_name(f->ns, name);
    int rc = ddstore__claim_look(f->dir, name, &seen, NULL);
    bool same = !rc && memcmp(seen.mark, f->run, 16) == 0;
    if (!rc)
        ddstore__claim_seen_free(&seen);
    if (!rc && !same)
        return over(f, "lost the directory to another group", err);
    int64_t now = ddstore__now_ns();
    if (rc != DDSTORE_EKEY)
        p->gone_since = 0;
    else if (!p->gone_since)
        p->gone_since = now;
    /* A claim that a user removed by mistake is made again within one beat. */
    if (p->gone_since && now - p->gone_since > 5 * ddstore__claim_beat_ns / 2)
        return over(f, "closed the group", err);
    return ddstore__poll_gone(p, 0, &f->lead, err) ? 1 : DDSTORE_OK;
}

/* Whether the claim's holder is known to live: by its process, or because its counter
 * moved since the last look. */
static bool holder_lives(ddstore__poll *p, const ddstore__claim_image *claim)
{
    int alive = ddstore__process_alive(&claim->holder);
    bool same = memcmp(p->holder, claim->nonce, 16) == 0;
    bool moved = same && claim->counter_valid && claim->counter != p->holder_counter;
    if (!same) {
        p->foreign_since = 0;
        p->holder_moved = false;
        memcpy(p->holder, claim->nonce, 16);
        p->holder_counter = claim->counter;
    }
    p->holder_moved = p->holder_moved || moved;
    return alive == 1 || (alive < 0 && p->holder_moved);
}

static int wrong_size(const ddstore__file *f, const ddstore__claim_image *claim,
                      ddstore_error *err)
{
    return ddstore__fail(
        err, DDSTORE_EINVAL,
        "rank %d (%s:%u) was told of %d members, rank 0 (%s:%u) of %u: "
        "start all of them with the same size",
        f->base.rank, f->self.host, f->self.pid, f->base.size, claim->holder.host,
        claim->holder.pid, claim->size);
}

static int is_of_met(void *arg, const char *text)
{
    const uint8_t *run = arg;
    ddstore__exchange_name name;
    return ddstore__exchange_name_parse(text, &name) &&
           (name.type == DDSTORE__X_COMMIT || name.type == DDSTORE__X_STEP) &&
           memcmp(name.run, run, 16) == 0;
}

/* Whether the holder's group has met, that is without this member: another group of no
 * identity of its own, or of the same. */
static bool has_met(ddstore__file *f, const ddstore__claim_image *claim)
{
    uint8_t run[16];
    memcpy(run, claim->nonce, 16);
    return ddstore__dir_scan(f->out, is_of_met, run, NULL) == 1;
}

static int judge_unmet(ddstore__poll *p, const ddstore__claim_image *claim,
                       ddstore_error *err)
{
    ddstore__file *f = p->f;
    bool foreign = strcmp(claim->identity, f->identity) != 0 || has_met(f, claim);
    if (!holder_lives(p, claim)) {
        p->foreign_since = 0;
        return DDSTORE_OK;
    }
    if (!foreign && claim->size != (uint32_t)f->base.size)
        return wrong_size(f, claim, err);
    if (!foreign) {
        p->foreign_since = 0;
        return DDSTORE_OK;
    }
    /* Rank 0 of this launch meets with the same refusal; but a group that is just
     * ending may still be about. */
    int64_t now = ddstore__now_ns();
    if (!p->foreign_since)
        p->foreign_since = now;
    if (now - p->foreign_since < FOREIGN_GRACE)
        return DDSTORE_OK;
    return ddstore__claim_conflict(f->dir, claim, err);
}

static int watch_unmet(ddstore__poll *p, ddstore_error *err)
{
    ddstore__file *f = p->f;
    char name[DDSTORE__CLAIM_NAME];
    ddstore__claim_seen seen;
    ddstore__claim_name(f->ns, name);
    if (ddstore__claim_look(f->dir, name, &seen, NULL))
        return DDSTORE_OK;
    int rc = DDSTORE_OK;
    /* Another rank 0 took over from the one whose proposal was acknowledged. */
    if (f->acked && memcmp(seen.mark, f->run, 16) != 0)
        f->acked = false;
    if (!seen.rc && strcmp(seen.image.ns, f->ns) == 0)
        rc = judge_unmet(p, &seen.image, err);
    ddstore__claim_seen_free(&seen);
    return rc;
}

int ddstore__poll_watch(ddstore__poll *p, ddstore_error *err)
{
    return p->f->met ? watch_met(p, err) : watch_unmet(p, err);
}

/* The first meeting, as rank 0 sees it: hold the claim, propose the nonces that
 * answered, and commit the proposal that all of them acknowledged. */
#include "file_lead.h"

#include <errno.h>
#include <stdlib.h>

#define EXTRAS_GRACE DDSTORE__S /* for a second answer of one rank to show life */

static size_t count_of(const ddstore__lead *l, int rank)
{
    size_t n = 0;
    for (int i = l->heads[rank]; i >= 0; i = l->list[i].next)
        n += ddstore__lead_counts(l, &l->list[i]);
    return n;
}

static bool has_ack(const ddstore__lead *l, int rank)
{
    for (int i = l->heads[rank]; i >= 0; i = l->list[i].next)
        if (ddstore__lead_counts(l, &l->list[i]) && l->list[i].acked == l->number)
            return true;
    return false;
}

/* All answers that count, by rank; NULL where a rank has none (*bytes 0) or memory
 * fails. */
static uint8_t *list_entries(ddstore__lead *l, size_t *bytes)
{
    size_t n = 0;
    *bytes = 0;
    for (int r = 1; r < l->f->base.size; r++) {
        size_t of_rank = count_of(l, r);
        if (!of_rank)
            return NULL;
        n += of_rank;
    }
    uint8_t *entries = malloc(n * DDSTORE__ENTRY + 1);
    if (!entries)
        return NULL;
    for (int r = 1; r < l->f->base.size; r++)
        for (int i = l->heads[r]; i >= 0; i = l->list[i].next)
            if (ddstore__lead_counts(l, &l->list[i])) {
                ddstore__entry_put(entries + *bytes, (uint32_t)r, l->list[i].who.own);
                *bytes += DDSTORE__ENTRY;
            }
    return entries;
}

static void name_of(const ddstore__lead *l, char type, char out[DDSTORE__EXCHANGE_NAME])
{
    ddstore__exchange_name name = {.type = type, .number = l->number};
    memcpy(name.run, l->f->run, 16);
    ddstore__exchange_name_format(&name, out);
}

static int propose(ddstore__lead *l)
{
    ddstore__file *f = l->f;
    ddstore__exchange x;
    int rc = ddstore__hold_check(f->hold, l->err);
    if (rc)
        return rc;
    if (l->number)
        ddstore__dir_remove(f->out, l->proposal);
    l->number++;
    l->answered_at = 0;
    name_of(l, DDSTORE__X_PROPOSAL, l->proposal);
    ddstore__file_sign(f, DDSTORE__X_PROPOSAL, &x);
    x.seq = l->number;
    x.head = l->entries;
    x.head_bytes = l->entries_bytes;
    ddstore__poll_restart(&l->poll);
    return ddstore__file_write(f, f->out, l->proposal, &x, l->err);
}

/* The members' list, and no trace of answers that didn't count: were one of them alive
 * after all, it would say hello again and be noticed. */
static int settle(ddstore__lead *l)
{
    ddstore__file *f = l->f;
    f->members = calloc((size_t)f->base.size, sizeof(*f->members));
    if (!f->members)
        return ddstore__fail(l->err, DDSTORE_ENOMEM, "no memory for %d members",
                             f->base.size);
    memcpy(f->members[0].own, f->own, 16);
    f->members[0].from = f->self;
    for (int i = 0; i < l->n; i++) {
        const ddstore__candidate *c = &l->list[i];
        if (ddstore__lead_counts(l, c))
            f->members[c->rank] = c->who;
        else if (c->name[0])
            ddstore__dir_remove(f->in, c->name);
    }
    return DDSTORE_OK;
}

static int commit(ddstore__lead *l)
{
    ddstore__file *f = l->f;
    ddstore__file_id id;
    int rc = ddstore__hold_check(f->hold, l->err);
    if (!rc)
        rc = settle(l);
    if (rc || f->base.size == 1)
        return rc;
    name_of(l, DDSTORE__X_COMMIT, f->last);
    rc = ddstore__dir_rename(f->out, l->proposal, f->last);
    if (rc == -ENOENT && ddstore__dir_identify(f->out, f->last, &id) == DDSTORE_OK)
        rc = 0; /* a network file system that asked twice */
    return rc ? ddstore__dir_fail(f->out, l->proposal, "rename", -rc, l->err)
              : DDSTORE_OK;
}

/* Each rank has acknowledged; whoever else was proposed has had its time. */
static void drop_extras(ddstore__lead *l)
{
    for (int i = 0; i < l->n; i++)
        if (l->list[i].acked != l->number)
            l->list[i].dropped = true;
}

/* 1: committed. */
static int advance(ddstore__lead *l)
{
    size_t bytes;
    uint8_t *entries = list_entries(l, &bytes);
    if (!entries)
        return DDSTORE_OK;
    bool same = l->number && bytes == l->entries_bytes &&
                memcmp(entries, l->entries, bytes) == 0;
    if (!same && l->f->base.size > 1) {
        free(l->entries);
        l->entries = entries;
        l->entries_bytes = bytes;
        return propose(l);
    }
    free(entries);
    for (int r = 1; r < l->f->base.size; r++)
        if (!has_ack(l, r))
            return DDSTORE_OK;
    if (bytes == (size_t)(l->f->base.size - 1) * DDSTORE__ENTRY) {
        int rc = commit(l);
        return rc ? rc : 1;
    }
    int64_t now = ddstore__now_ns();
    if (!l->answered_at)
        l->answered_at = now;
    else if (now - l->answered_at > EXTRAS_GRACE)
        drop_extras(l);
    return DDSTORE_OK;
}

static void report(ddstore__lead *l, bool timed_out)
{
    uint32_t size = (uint32_t)l->f->base.size;
    ddstore__ranks here = {.bits = calloc(size / 8 + 1, 1), .size = size};
    if (here.bits) {
        ddstore__ranks_add(&here, 0);
        for (int r = 1; r < l->f->base.size; r++)
            if (l->number ? has_ack(l, r) : count_of(l, r) > 0)
                ddstore__ranks_add(&here, (uint32_t)r);
    }
    if (timed_out)
        ddstore__report_timeout(&l->poll, &here, l->err);
    else
        ddstore__report_waiting(&l->poll, &here);
    free(here.bits);
}

static int lead(ddstore__lead *l)
{
    for (;;) {
        int rc = l->f->base.size > 1 ? ddstore__lead_scan(l) : DDSTORE_OK;
        if (!rc && ddstore__poll_watch_due(&l->poll))
            ddstore__lead_watch(l);
        if (!rc)
            rc = ddstore__lead_conflicts(l);
        if (!rc)
            rc = advance(l);
        if (rc)
            return rc > 0 ? DDSTORE_OK : rc;
        if (ddstore__poll_log_due(&l->poll))
            report(l, false);
        rc = ddstore__poll_pause(&l->poll, l->err);
        if (rc == DDSTORE_ETIMEDOUT)
            report(l, true);
        if (rc)
            return rc;
    }
}

static int take_claim(ddstore__file *f, const ddstore__contact_probe *probe,
                      const ddstore__wait *wait, ddstore_error *why)
{
    ddstore__claim_image mine = {.size = (uint32_t)f->base.size, .holder = f->self},
                         holder;
    memcpy(mine.nonce, f->own, 16);
    memcpy(mine.ns, f->ns, sizeof(mine.ns));
    memcpy(mine.identity, f->identity, sizeof(mine.identity));
    if (probe) {
        if (probe->bytes > DDSTORE__CONTACT_LONGEST)
            return ddstore__fail(why, DDSTORE_EINVAL,
                                 "a claim's contact has at most %d "
                                 "bytes",
                                 DDSTORE__CONTACT_LONGEST);
        mine.contact = probe->mine;
        mine.contact_bytes = (uint32_t)probe->bytes;
    }
    int rc = ddstore__hold_take(f->dir, &mine, probe, wait, &f->hold, &holder, why);
    /* Without an identity, or twice under one, the holder can't tell its own members
     * from this group's: it must know that there are two. */
    if (rc == DDSTORE_ECONFLICT && strcmp(holder.identity, f->identity) == 0 &&
        holder.ns[0] && f->base.size > 1)
        ddstore__file_note(f, DDSTORE__X_REFUSED, holder.nonce, why);
    return rc;
}

int ddstore__file_lead(ddstore__file *f, const ddstore__contact_probe *probe,
                       int64_t deadline_ns, ddstore_error *err)
{
    ddstore_error why = {0};
    ddstore__lead l;
    int rc = ddstore__lead_init(&l, f, &why);
    ddstore__poll_begin(&l.poll, f, deadline_ns);
    if (!rc)
        rc = take_claim(f, probe, &l.poll.wait, &why);
    if (!rc) {
        memcpy(f->run, f->own, 16);
        f->acked = true;
        f->lead = f->self;
        rc = lead(&l);
        if (rc)
            ddstore__file_abort(f, &why);
    }
    ddstore__lead_free(&l);
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    f->met = true;
    ddstore__file_clean(f);
    return DDSTORE_OK;
}

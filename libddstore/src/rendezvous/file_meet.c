/* The first meeting, as all ranks but 0 see it: publish a fresh nonce, acknowledge the
 * proposal that holds it, and wait until that proposal is committed. */
#include "file.h"

#include <errno.h>
#include <stdlib.h>

struct follow {
    ddstore__file *f;
    ddstore__poll poll;
    uint64_t number;     /* of the acknowledged proposal */
    ddstore__file_id id; /* its file: the commit is the same one renamed */
    uint64_t *examined;  /* hashes of names in `out` that concern others */
    size_t n, room;
    ddstore_error *err;
};

static bool was_examined(const struct follow *m, uint64_t hash)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->examined[i] == hash)
            return true;
    return false;
}

/* Without memory a file is only opened more often. */
static void note_examined(struct follow *m, uint64_t hash)
{
    if (m->n == m->room) {
        size_t room = m->room ? 2 * m->room : 16;
        uint64_t *more = realloc(m->examined, room * sizeof(*more));
        if (!more)
            return;
        m->examined = more;
        m->room = room;
    }
    m->examined[m->n++] = hash;
}

static int say_hello(ddstore__file *f, ddstore_error *err)
{
    ddstore__exchange x;
    ddstore__exchange_name name = {.type = DDSTORE__X_HELLO,
                                   .rank = (uint32_t)f->base.rank};
    memcpy(name.own, f->own, 16);
    ddstore__exchange_name_format(&name, f->mine);
    ddstore__file_sign(f, DDSTORE__X_HELLO, &x);
    memset(x.run, 0, 16);
    return ddstore__file_write(f, f->in, f->mine, &x, err);
}

/* The hello under a name that says whose proposal it answers. */
static int acknowledge(struct follow *m, const uint8_t run[16], uint64_t number)
{
    ddstore__file *f = m->f;
    char text[DDSTORE__EXCHANGE_NAME];
    ddstore__exchange_name name = {
        .type = DDSTORE__X_ACK, .rank = (uint32_t)f->base.rank, .number = number};
    memcpy(name.own, f->own, 16);
    memcpy(name.run, run, 16);
    ddstore__exchange_name_format(&name, text);
    int rc = ddstore__dir_rename(f->in, f->mine, text);
    if (rc == -ENOENT) { /* somebody removed it */
        int again = say_hello(f, m->err);
        if (again)
            return again;
        rc = ddstore__dir_rename(f->in, f->mine, text);
    }
    if (rc && rc != -ENOENT)
        return ddstore__dir_fail(f->in, f->mine, "rename", -rc, m->err);
    memcpy(f->mine, text, sizeof(text));
    memcpy(f->run, run, 16);
    f->acked = true;
    m->number = number;
    return DDSTORE_OK;
}

/* Reads a proposal or what became of one. 1: it holds this member's nonce. */
static int read_proposal(struct follow *m, const char *text,
                         const ddstore__exchange_name *name, ddstore__file_seen *seen)
{
    ddstore__file *f = m->f;
    int rc = ddstore__file_look(f, f->out, text, seen, m->err);
    if (rc)
        return rc == DDSTORE_EKEY ? 0 : rc;
    const ddstore__exchange *x = &seen->x;
    bool good = x->type == DDSTORE__X_PROPOSAL && x->rank == 0 &&
                x->seq == name->number && memcmp(x->run, name->run, 16) == 0;
    bool ours = good && ddstore__entries_have(x, (uint32_t)f->base.rank, f->own);
    if (!ours)
        note_examined(m, ddstore__hash64(text, strlen(text)));
    free(seen->data);
    seen->data = NULL;
    return ours;
}

/* Rank 0 commits only what all have acknowledged, so a commit that holds this member's
 * nonce is its group's. Mostly it is the proposal's file, which needs no second
 * reading. */
static int on_commit(struct follow *m, const char *text,
                     const ddstore__exchange_name *name)
{
    ddstore__file_seen seen;
    ddstore__file_id id;
    bool mine = m->f->acked && memcmp(m->f->run, name->run, 16) == 0 &&
                name->number == m->number;
    bool same = mine && ddstore__dir_identify(m->f->out, text, &id) == DDSTORE_OK &&
                id.device == m->id.device && id.inode == m->id.inode;
    if (!same) {
        if (was_examined(m, ddstore__hash64(text, strlen(text))))
            return DDSTORE_OK;
        int rc = read_proposal(m, text, name, &seen);
        if (rc != 1)
            return rc;
        memcpy(m->f->run, name->run, 16);
        m->f->lead = seen.x.from;
    }
    m->f->met = true;
    return 1;
}

/* The commit of the proposal that was acknowledged, whatever a listing shows. */
static int look_for_commit(struct follow *m)
{
    char text[DDSTORE__EXCHANGE_NAME];
    ddstore__exchange_name name = {.type = DDSTORE__X_COMMIT, .number = m->number};
    if (!m->number)
        return DDSTORE_OK;
    memcpy(name.run, m->f->run, 16);
    ddstore__exchange_name_format(&name, text);
    return on_commit(m, text, &name);
}

static int on_proposal(struct follow *m, const char *text,
                       const ddstore__exchange_name *name)
{
    ddstore__file_seen seen;
    bool same_run = memcmp(m->f->run, name->run, 16) == 0;
    bool known = m->f->acked && (!same_run || name->number <= m->number);
    if (known || was_examined(m, ddstore__hash64(text, strlen(text))))
        return DDSTORE_OK;
    int rc = read_proposal(m, text, name, &seen);
    if (rc != 1)
        return rc;
    if (seen.x.size != (uint32_t)m->f->base.size)
        return ddstore__fail(m->err, DDSTORE_EINVAL,
                             "rank %d was told of %d members, rank 0 (%s:%u) of %u",
                             m->f->base.rank, m->f->base.size, seen.x.from.host,
                             seen.x.from.pid, seen.x.size);
    /* Whoever answers another run has left the former one for good. */
    rc = same_run ? DDSTORE_OK : look_for_commit(m);
    if (rc)
        return rc;
    m->id = seen.id;
    m->f->lead = seen.x.from;
    ddstore__poll_restart(&m->poll);
    return acknowledge(m, name->run, name->number);
}

static int on_name(void *arg, const char *text)
{
    struct follow *m = arg;
    ddstore__exchange_name name;
    if (!ddstore__exchange_name_parse(text, &name))
        return 0;
    uint64_t hash = ddstore__hash64(text, strlen(text));
    switch (name.type) {
    case DDSTORE__X_PROPOSAL:
        return on_proposal(m, text, &name);
    case DDSTORE__X_COMMIT:
        return on_commit(m, text, &name);
    case DDSTORE__X_ABORT:
        if (was_examined(m, hash))
            return 0;
        note_examined(m, hash);
        return ddstore__file_aborted(m->f, text, m->err);
    default:
        return 0;
    }
}

static int watch(struct follow *m)
{
    ddstore__file_id id;
    bool acked = m->f->acked;
    int rc = ddstore__poll_watch(&m->poll, m->err);
    if (acked && !m->f->acked)
        m->n = 0; /* another rank 0: what was put aside may be its proposal */
    if (!rc && ddstore__dir_identify(m->f->in, m->f->mine, &id) == DDSTORE_EKEY) {
        m->f->acked = false;
        m->n = 0;
        rc = say_hello(m->f, m->err);
    }
    return rc;
}

static int follow(struct follow *m)
{
    int rc = say_hello(m->f, m->err);
    while (!rc) {
        rc = ddstore__dir_scan(m->f->out, on_name, m, m->err);
        if (!rc && ddstore__poll_blind_due(&m->poll))
            rc = look_for_commit(m); /* a listing may be stale for long */
        if (!rc && ddstore__poll_watch_due(&m->poll))
            rc = watch(m);
        if (!rc && ddstore__poll_log_due(&m->poll))
            ddstore__report_waiting(&m->poll, NULL);
        if (!rc)
            rc = ddstore__poll_pause(&m->poll, m->err);
        if (rc == DDSTORE_ETIMEDOUT && !m->f->aborted)
            return ddstore__report_timeout(&m->poll, NULL, m->err);
    }
    return rc > 0 ? DDSTORE_OK : rc;
}

/* Tells the rank 0 of this launch, if there is one, not to wait for this member. */
static void withdraw(ddstore__file *f, const ddstore_error *why)
{
    char name[DDSTORE__CLAIM_NAME];
    ddstore__claim_seen seen;
    if (f->aborted)
        return;
    ddstore__claim_name(f->ns, name);
    if (ddstore__claim_look(f->dir, name, &seen, NULL))
        return;
    if (!seen.rc && strcmp(seen.image.identity, f->identity) == 0 &&
        strcmp(seen.image.ns, f->ns) == 0 &&
        ddstore__process_alive(&seen.image.holder) != 0)
        ddstore__file_note(f, DDSTORE__X_FAILED, seen.image.nonce, why);
    ddstore__claim_seen_free(&seen);
}

int ddstore__file_follow(ddstore__file *f, int64_t deadline_ns, ddstore_error *err)
{
    ddstore_error why = {0};
    struct follow m = {.f = f, .err = &why};
    ddstore__poll_begin(&m.poll, f, deadline_ns);
    int rc = follow(&m);
    free(m.examined);
    if (rc) {
        if (err)
            *err = why;
        withdraw(f, &why);
        return rc;
    }
    ddstore__dir_remove(f->in, f->mine);
    f->mine[0] = '\0';
    return DDSTORE_OK;
}

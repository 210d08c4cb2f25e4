/* Before a first meeting rank 0 collects who answers for which rank. */
#include "file_lead.h"

#include <stdlib.h>

/* Who answered another run may be in it still: its commit may only just have appeared.
 */
#define ELSEWHERE_GRACE DDSTORE__S

int ddstore__lead_init(ddstore__lead *l, ddstore__file *f, ddstore_error *err)
{
    memset(l, 0, sizeof(*l));
    l->f = f;
    l->err = err;
    l->heads = malloc(((size_t)f->base.size + 1) * sizeof(*l->heads));
    if (!l->heads)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %d members",
                             f->base.size);
    for (int r = 0; r <= f->base.size; r++)
        l->heads[r] = -1;
    return DDSTORE_OK;
}

void ddstore__lead_free(ddstore__lead *l)
{
    free(l->list);
    free(l->heads);
    free(l->entries);
}

static int *head_of(ddstore__lead *l, uint32_t rank)
{
    uint32_t size = (uint32_t)l->f->base.size;
    return &l->heads[rank < size ? rank : size];
}

static ddstore__candidate *find(ddstore__lead *l, uint32_t rank, const uint8_t own[16])
{
    for (int i = *head_of(l, rank); i >= 0; i = l->list[i].next)
        if (l->list[i].rank == rank && memcmp(l->list[i].who.own, own, 16) == 0)
            return &l->list[i];
    return NULL;
}

static ddstore__candidate *add(ddstore__lead *l, uint32_t rank, const uint8_t own[16])
{
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 64;
        ddstore__candidate *more = realloc(l->list, (size_t)room * sizeof(*more));
        if (!more)
            return NULL;
        l->list = more;
        l->room = room;
    }
    ddstore__candidate *c = &l->list[l->n];
    memset(c, 0, sizeof(*c));
    c->rank = rank;
    c->since = ddstore__now_ns();
    memcpy(c->who.own, own, 16);
    int *head = head_of(l, rank);
    c->next = *head;
    *head = l->n++;
    return c;
}

static bool is_hello(const ddstore__exchange *x, const ddstore__candidate *c)
{
    return x->type == DDSTORE__X_HELLO && x->rank == c->rank &&
           memcmp(x->own, c->who.own, 16) == 0;
}

static int read_hello(ddstore__lead *l, ddstore__candidate *c)
{
    ddstore__file_seen seen;
    int rc = ddstore__file_look(l->f, l->f->in, c->name, &seen, l->err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc; /* not yet whole, or gone again */
    if (is_hello(&seen.x, c)) {
        c->who.from = seen.x.from;
        c->size = seen.x.size;
        c->id = seen.id;
        c->alive = ddstore__process_alive(&c->who.from);
        c->whole = true;
    }
    free(seen.data);
    return DDSTORE_OK;
}

/* The name says which proposal is acknowledged; the file must be the hello that was
 * read. */
static int check_ack(ddstore__lead *l, ddstore__candidate *c, uint64_t number)
{
    ddstore__file_id id;
    if (ddstore__dir_identify(l->f->in, c->name, &id))
        return DDSTORE_OK;
    if (id.device != c->id.device || id.inode != c->id.inode) {
        ddstore__file_seen seen;
        int rc = ddstore__file_look(l->f, l->f->in, c->name, &seen, l->err);
        if (rc)
            return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
        bool same = is_hello(&seen.x, c);
        free(seen.data);
        if (!same)
            return DDSTORE_OK;
        c->id = id;
    }
    c->acked = number;
    return DDSTORE_OK;
}

static int on_answer(ddstore__lead *l, const char *text,
                     const ddstore__exchange_name *name)
{
    int rc = DDSTORE_OK;
    ddstore__candidate *c = find(l, name->rank, name->own);
    if (!c)
        c = add(l, name->rank, name->own);
    if (!c)
        return ddstore__fail(l->err, DDSTORE_ENOMEM,
                             "no memory for the group's members");
    c->scan = l->scan;
    memcpy(c->name, text, strlen(text) + 1);
    if (!c->whole)
        rc = read_hello(l, c);
    bool ours = memcmp(name->run, l->f->run, 16) == 0;
    c->elsewhere = name->type == DDSTORE__X_ACK && !ours;
    bool acks =
        name->type == DDSTORE__X_ACK && c->whole && ours && name->number > c->acked;
    if (rc || !acks)
        return rc;
    if (c->dropped)
        c->alive = 1; /* a late answer, but a living one */
    return check_ack(l, c, name->number);
}

static int on_name(void *arg, const char *text)
{
    ddstore__lead *l = arg;
    ddstore__exchange_name name;
    if (!ddstore__exchange_name_parse(text, &name))
        return 0;
    bool to_us = memcmp(name.run, l->f->run, 16) == 0;
    switch (name.type) {
    case DDSTORE__X_HELLO:
    case DDSTORE__X_ACK:
        return name.rank == 0 ? 0 : on_answer(l, text, &name);
    case DDSTORE__X_FAILED:
        return to_us && find(l, name.rank, name.own)
                   ? ddstore__file_noted(l->f, text, &name, l->err)
                   : 0;
    case DDSTORE__X_REFUSED:
        return to_us ? ddstore__file_noted(l->f, text, &name, l->err) : 0;
    default:
        return 0;
    }
}

int ddstore__lead_scan(ddstore__lead *l)
{
    l->scan++;
    return ddstore__dir_scan(l->f->in, on_name, l, l->err);
}

/* One listing may miss a file that is just being renamed; two mean that it is gone. */
bool ddstore__lead_counts(const ddstore__lead *l, const ddstore__candidate *c)
{
    if (c->elsewhere && ddstore__now_ns() - c->since < ELSEWHERE_GRACE)
        return false;
    return c->whole && c->alive != 0 && !c->dropped && l->scan - c->scan < 2 &&
           c->size == (uint32_t)l->f->base.size && c->rank < c->size;
}

void ddstore__lead_watch(ddstore__lead *l)
{
    for (int i = 0; i < l->n; i++) {
        ddstore__candidate *c = &l->list[i];
        if (c->whole && c->alive == 1 && ddstore__process_alive(&c->who.from) == 0)
            c->alive = 0;
    }
}

static int wrong_size(ddstore__lead *l, const ddstore__candidate *c)
{
    const ddstore__file *f = l->f;
    return ddstore__fail(
        l->err, DDSTORE_EINVAL,
        "rank %u (%s:%u) was told of %u members, rank 0 (%s:%u) of %d: "
        "start all of them with the same size",
        c->rank, c->who.from.host, c->who.from.pid, c->size, f->self.host, f->self.pid,
        f->base.size);
}

/* Whether it is certain that the process behind the answer lives now. */
static bool lives(const ddstore__lead *l, const ddstore__candidate *c)
{
    if (!c->whole || c->alive == 0 || c->elsewhere || l->scan != c->scan)
        return false;
    return c->alive == 1 || (c->acked && c->acked == l->number && !c->dropped);
}

/* A member that leaves and comes back may be listed under both nonces once, not twice.
 */
static bool are_rivals(const ddstore__lead *l, ddstore__candidate *c,
                       const ddstore__candidate *o)
{
    if (o->rank != c->rank || !lives(l, o))
        return false;
    bool again = c->rival && c->rival == l->scan - 1;
    c->rival = l->scan;
    return again;
}

int ddstore__lead_conflicts(ddstore__lead *l)
{
    for (int i = 0; i < l->n; i++) {
        ddstore__candidate *c = &l->list[i];
        if (!lives(l, c))
            continue;
        if (c->size != (uint32_t)l->f->base.size)
            return wrong_size(l, c);
        for (int k = c->next; k >= 0; k = l->list[k].next)
            if (are_rivals(l, c, &l->list[k]))
                return ddstore__file_duplicate(l->f, c->rank, &c->who.from,
                                               &l->list[k].who.from, l->err);
    }
    return DDSTORE_OK;
}

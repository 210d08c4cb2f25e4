/* Descriptions: encoding and strict decoding. */
#include "description.h"

#include <stdlib.h>

#define MAGIC      0x31504444u /* "DDP1" */
#define RANKS_MAX  (1u << 20)
#define RANK_BYTES (8 + DDSTORE__DESCRIPTOR_BYTES)

enum entry { END, GROUP, VARIABLE };

/* -- writing -- */

void ddstore__description_begin(ddstore__buffer *b, int method, int rank,
                                const char *ns)
{
    ddstore__add32(b, MAGIC);
    ddstore__add32(b, (uint32_t)method);
    ddstore__add32(b, (uint32_t)rank);
    ddstore__add_text(b, ns);
}

void ddstore__description_add_group(ddstore__buffer *b, const uint8_t run[16],
                                    const uint8_t secret[16], int ranks)
{
    ddstore__add32(b, GROUP);
    ddstore__add32(b, (uint32_t)ranks);
    ddstore__add_bytes(b, run, 16);
    ddstore__add_bytes(b, secret, 16);
}

void ddstore__description_add_contact(ddstore__buffer *b,
                                      const ddstore__contact *contact)
{
    uint8_t *out = ddstore__extend(b, DDSTORE__CONTACT_BYTES);
    if (out)
        ddstore__contact_encode(contact, out);
}

void ddstore__description_add_variable(ddstore__buffer *b, uint32_t group,
                                       const ddstore__variable_record *r)
{
    ddstore__add32(b, VARIABLE);
    ddstore__add32(b, group);
    ddstore__add64(b, r->disp);
    ddstore__add32(b, r->itemsize);
    ddstore__add_text(b, r->name);
    ddstore__add_text(b, r->dtype);
    for (int i = 0; i < r->ranks; i++) {
        ddstore__add64(b, (uint64_t)r->rank[i].rows);
        uint8_t *at = ddstore__extend(b, DDSTORE__DESCRIPTOR_BYTES);
        if (at)
            ddstore__descriptor_encode(&r->rank[i].at, at);
    }
}

void ddstore__description_end(ddstore__buffer *b, uint32_t current)
{
    ddstore__add32(b, END);
    ddstore__add32(b, current);
    if (b->data && !b->failed)
        ddstore__add64(b, ddstore__hash64(b->data, b->bytes));
}

/* -- reading -- */

static size_t left(const ddstore__cursor *c)
{
    return (size_t)(c->end - c->at);
}

int ddstore__description_open(const uint8_t *in, size_t bytes,
                              ddstore__description *out)
{
    *out = (ddstore__description){.current = DDSTORE__NO_GROUP};
    if (bytes < 16 || bytes > DDSTORE__RECORD_MAX ||
        ddstore__get64(in + bytes - 8) != ddstore__hash64(in, bytes - 8))
        return DDSTORE_EINVAL;
    ddstore__cursor *c = &out->at;
    *c = (ddstore__cursor){.at = in, .end = in + bytes - 8};
    uint32_t magic = ddstore__take32(c), method = ddstore__take32(c);
    out->rank = (int)ddstore__take32(c);
    if (magic != MAGIC || (method != 1 && method != 2) || out->rank < -1)
        return DDSTORE_EINVAL;
    out->method = (int)method;
    char *ns = ddstore__take_text(c, sizeof(out->ns) - 1);
    if (!ns)
        return DDSTORE_EINVAL;
    memcpy(out->ns, ns, strlen(ns) + 1);
    free(ns);
    return DDSTORE_OK;
}

static int take_contacts(ddstore__cursor *c, ddstore__group_record *g)
{
    /* Bounded by the bytes that are there before anything is allocated. */
    if (left(c) / DDSTORE__CONTACT_BYTES < (size_t)g->ranks)
        return DDSTORE_EINVAL;
    g->contact = calloc((size_t)g->ranks, sizeof(*g->contact));
    if (!g->contact)
        return DDSTORE_ENOMEM;
    for (int i = 0; i < g->ranks; i++)
        if (!ddstore__contact_decode(ddstore__take(c, DDSTORE__CONTACT_BYTES),
                                     DDSTORE__CONTACT_BYTES, &g->contact[i]))
            return DDSTORE_EINVAL;
    return DDSTORE_OK;
}

static int take_group(ddstore__description *d)
{
    ddstore__cursor *c = &d->at;
    ddstore__group_record g = {0};
    uint32_t ranks = ddstore__take32(c);
    ddstore__take_bytes(c, g.run, 16);
    ddstore__take_bytes(c, g.secret, 16);
    if (c->bad || ranks == 0 || ranks > RANKS_MAX || d->rank >= (int)ranks)
        return DDSTORE_EINVAL;
    g.ranks = (int)ranks;
    int rc = take_contacts(c, &g);
    ddstore__group_record *more =
        rc ? NULL : realloc(d->group, ((size_t)d->n_groups + 1) * sizeof(*more));
    if (!more) {
        free(g.contact);
        return rc ? rc : DDSTORE_ENOMEM;
    }
    d->group = more;
    d->group[d->n_groups++] = g;
    return DDSTORE_OK;
}

static int take_ranks(ddstore__cursor *c, const ddstore__group_record *g,
                      ddstore__variable_record *out)
{
    if (left(c) / RANK_BYTES < (size_t)g->ranks)
        return DDSTORE_EINVAL;
    out->rank = calloc((size_t)g->ranks, sizeof(*out->rank));
    if (!out->rank)
        return DDSTORE_ENOMEM;
    out->ranks = g->ranks;
    for (int i = 0; i < g->ranks; i++) {
        ddstore__rank_record *r = &out->rank[i];
        r->rows = (int64_t)ddstore__take64(c);
        r->contact = g->contact[i];
        if (r->rows < 0 ||
            !ddstore__descriptor_decode(ddstore__take(c, DDSTORE__DESCRIPTOR_BYTES),
                                        DDSTORE__DESCRIPTOR_BYTES, &r->at))
            return DDSTORE_EINVAL;
    }
    return DDSTORE_OK;
}

static int take_variable(ddstore__description *d, uint32_t *group,
                         ddstore__variable_record *out)
{
    ddstore__cursor *c = &d->at;
    *group = ddstore__take32(c);
    if (c->bad || *group >= d->n_groups)
        return DDSTORE_EINVAL;
    const ddstore__group_record *g = &d->group[*group];
    memcpy(out->run, g->run, 16);
    memcpy(out->secret, g->secret, 16);
    memcpy(out->ns, d->ns, sizeof(out->ns));
    out->disp = ddstore__take64(c);
    out->itemsize = ddstore__take32(c);
    out->name = ddstore__take_text(c, DDSTORE__TEXT_MAX);
    out->dtype = ddstore__take_text(c, UINT16_MAX);
    if (c->bad)
        return DDSTORE_EINVAL;
    int rc = take_ranks(c, g, out);
    return rc ? rc : ddstore__record_fits(out) ? 1 : DDSTORE_EINVAL;
}

static int take_end(ddstore__description *d)
{
    ddstore__cursor *c = &d->at;
    d->current = ddstore__take32(c);
    bool known = d->current < d->n_groups ||
                 (d->current == DDSTORE__NO_GROUP && d->n_groups == 0 && d->rank < 0);
    return !c->bad && c->at == c->end && known ? 0 : DDSTORE_EINVAL;
}

int ddstore__description_next(ddstore__description *d, uint32_t *group,
                              ddstore__variable_record *variable)
{
    memset(variable, 0, sizeof(*variable));
    for (;;) {
        int rc = DDSTORE_EINVAL;
        uint32_t kind = ddstore__take32(&d->at);
        if (d->at.bad)
            return rc;
        if (kind == END)
            return take_end(d);
        if (kind == VARIABLE)
            rc = take_variable(d, group, variable);
        else if (kind == GROUP)
            rc = take_group(d);
        if (rc < 0)
            ddstore__record_free(variable);
        if (rc)
            return rc;
    }
}

void ddstore__description_close(ddstore__description *d)
{
    for (uint32_t i = 0; i < d->n_groups; i++)
        free(d->group[i].contact);
    free(d->group);
    *d = (ddstore__description){.current = DDSTORE__NO_GROUP};
}

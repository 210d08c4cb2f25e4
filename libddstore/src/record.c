/* Records: encoding and strict decoding. */
#include "record.h"

#include <stdlib.h>

#define MAGIC      0x31524444u /* "DDR1" */
#define RANKS_MAX  (1u << 20)
#define RANK_BYTES (8 + DDSTORE__CONTACT_BYTES + DDSTORE__DESCRIPTOR_BYTES)

void ddstore__add_text(ddstore__buffer *b, const char *text)
{
    size_t n = strlen(text);
    ddstore__add16(b, (uint16_t)n);
    ddstore__add_bytes(b, text, n);
}

void ddstore__record_encode(const ddstore__variable_record *r, ddstore__buffer *b)
{
    size_t begin = b->bytes;
    ddstore__add32(b, MAGIC);
    ddstore__add32(b, (uint32_t)r->ranks);
    ddstore__add_bytes(b, r->run, 16);
    ddstore__add_bytes(b, r->secret, 16);
    ddstore__add64(b, r->disp);
    ddstore__add32(b, r->itemsize);
    ddstore__add_text(b, r->ns);
    ddstore__add_text(b, r->name);
    ddstore__add_text(b, r->dtype);
    for (int i = 0; i < r->ranks; i++) {
        ddstore__add64(b, (uint64_t)r->rank[i].rows);
        uint8_t *contact = ddstore__extend(b, DDSTORE__CONTACT_BYTES);
        if (contact)
            ddstore__contact_encode(&r->rank[i].contact, contact);
        uint8_t *at = ddstore__extend(b, DDSTORE__DESCRIPTOR_BYTES);
        if (at)
            ddstore__descriptor_encode(&r->rank[i].at, at);
    }
    if (b->data && !b->failed)
        ddstore__add64(b, ddstore__hash64(b->data + begin, b->bytes - begin));
}

char *ddstore__take_text(ddstore__cursor *c, size_t max)
{
    size_t n = ddstore__take16(c);
    const uint8_t *p = n <= max ? ddstore__take(c, n) : NULL;
    if (!p || memchr(p, '\0', n)) {
        c->bad = true;
        return NULL;
    }
    char *text = ddstore__copy_text(p, n);
    c->bad = !text;
    return text;
}

static bool take_ranks(ddstore__cursor *c, ddstore__variable_record *out)
{
    if ((size_t)(c->end - c->at) != (size_t)out->ranks * RANK_BYTES)
        return false;
    out->rank = calloc((size_t)out->ranks, sizeof(*out->rank));
    if (!out->rank)
        return false;
    for (int i = 0; i < out->ranks; i++) {
        ddstore__rank_record *r = &out->rank[i];
        r->rows = (int64_t)ddstore__take64(c);
        if (r->rows < 0 ||
            !ddstore__contact_decode(ddstore__take(c, DDSTORE__CONTACT_BYTES),
                                     DDSTORE__CONTACT_BYTES, &r->contact) ||
            !ddstore__descriptor_decode(ddstore__take(c, DDSTORE__DESCRIPTOR_BYTES),
                                        DDSTORE__DESCRIPTOR_BYTES, &r->at))
            return false;
    }
    return true;
}

bool ddstore__record_fits(const ddstore__variable_record *r)
{
    uint64_t row_bytes;
    if (__builtin_mul_overflow(r->disp, (uint64_t)r->itemsize, &row_bytes))
        return false;
    for (int i = 0; i < r->ranks; i++) {
        uint64_t bytes;
        if (__builtin_mul_overflow((uint64_t)r->rank[i].rows, row_bytes, &bytes) ||
            bytes != r->rank[i].at.bytes)
            return false;
    }
    return true;
}

int ddstore__record_decode(const uint8_t *in, size_t bytes,
                           ddstore__variable_record *out)
{
    memset(out, 0, sizeof(*out));
    if (bytes < 16 || ddstore__get64(in + bytes - 8) != ddstore__hash64(in, bytes - 8))
        return DDSTORE_EINVAL;
    ddstore__cursor c = {.at = in, .end = in + bytes - 8};
    uint32_t magic = ddstore__take32(&c), ranks = ddstore__take32(&c);
    if (magic != MAGIC || ranks == 0 || ranks > RANKS_MAX)
        return DDSTORE_EINVAL;
    out->ranks = (int)ranks;
    ddstore__take_bytes(&c, out->run, 16);
    ddstore__take_bytes(&c, out->secret, 16);
    out->disp = ddstore__take64(&c);
    out->itemsize = ddstore__take32(&c);
    char *ns = ddstore__take_text(&c, sizeof(out->ns) - 1);
    if (ns)
        memcpy(out->ns, ns, strlen(ns) + 1);
    free(ns);
    out->name = ddstore__take_text(&c, DDSTORE__TEXT_MAX);
    out->dtype = ddstore__take_text(&c, UINT16_MAX);
    if (c.bad || !out->name || !out->dtype || !take_ranks(&c, out) ||
        !ddstore__record_fits(out))
        return DDSTORE_EINVAL;
    return DDSTORE_OK;
}

void ddstore__record_free(ddstore__variable_record *r)
{
    free(r->name);
    free(r->dtype);
    free(r->rank);
    memset(r, 0, sizeof(*r));
}

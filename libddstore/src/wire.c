/* Encoding and decoding of what travels between processes. */
#include "wire.h"

#include <stdlib.h>

#define CONTACT_MAGIC    0x31434444u /* "DDC1" */
#define DESCRIPTOR_MAGIC 0x31534444u /* "DDS1" */
#define FRAME_MAGIC      0x31464444u /* "DDF1" */

const uint8_t *ddstore__take(ddstore__cursor *c, size_t bytes)
{
    if (c->bad || (size_t)(c->end - c->at) < bytes) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += bytes;
    return p;
}

uint16_t ddstore__take16(ddstore__cursor *c)
{
    const uint8_t *p = ddstore__take(c, 2);
    return p ? ddstore__get16(p) : 0;
}

uint32_t ddstore__take32(ddstore__cursor *c)
{
    const uint8_t *p = ddstore__take(c, 4);
    return p ? ddstore__get32(p) : 0;
}

uint64_t ddstore__take64(ddstore__cursor *c)
{
    const uint8_t *p = ddstore__take(c, 8);
    return p ? ddstore__get64(p) : 0;
}

void ddstore__take_bytes(ddstore__cursor *c, void *out, size_t bytes)
{
    const uint8_t *p = ddstore__take(c, bytes);
    if (p)
        memcpy(out, p, bytes);
    else
        memset(out, 0, bytes);
}

char *ddstore__copy_text(const void *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (copy) {
        if (bytes)
            memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

uint8_t *ddstore__extend(ddstore__buffer *b, size_t bytes)
{
    if (b->failed)
        return NULL;
    if (b->room - b->bytes < bytes) {
        size_t room = b->room * 2 + bytes;
        uint8_t *data = realloc(b->data, room);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->room = room;
    }
    uint8_t *p = b->data + b->bytes;
    b->bytes += bytes;
    return p;
}

void ddstore__add16(ddstore__buffer *b, uint16_t v)
{
    uint8_t *p = ddstore__extend(b, 2);
    if (p)
        ddstore__put16(p, v);
}

void ddstore__add32(ddstore__buffer *b, uint32_t v)
{
    uint8_t *p = ddstore__extend(b, 4);
    if (p)
        ddstore__put32(p, v);
}

void ddstore__add64(ddstore__buffer *b, uint64_t v)
{
    uint8_t *p = ddstore__extend(b, 8);
    if (p)
        ddstore__put64(p, v);
}

void ddstore__add_bytes(ddstore__buffer *b, const void *data, size_t bytes)
{
    uint8_t *p = ddstore__extend(b, bytes);
    if (p && bytes)
        memcpy(p, data, bytes);
}

/* A writer over fixed room, by the same calls as a growing one. */
static ddstore__buffer fixed(uint8_t *out, size_t bytes)
{
    memset(out, 0, bytes);
    return (ddstore__buffer){.data = out, .room = bytes};
}

static void add_address(ddstore__buffer *b, const ddstore__address *a)
{
    ddstore__add16(b, a->family);
    ddstore__add16(b, a->port);
    ddstore__add32(b, a->scope);
    ddstore__add_bytes(b, a->ip, sizeof(a->ip));
}

void ddstore__contact_encode(const ddstore__contact *c,
                             uint8_t out[DDSTORE__CONTACT_BYTES])
{
    ddstore__buffer b = fixed(out, DDSTORE__CONTACT_BYTES);
    ddstore__add32(&b, CONTACT_MAGIC);
    ddstore__add32(&b, c->process.pid);
    ddstore__add_bytes(&b, c->uid, 16);
    ddstore__add_bytes(&b, c->process.boot_id, 16);
    ddstore__add64(&b, c->process.pid_ns);
    ddstore__add64(&b, c->process.start_time);
    ddstore__add_bytes(&b, c->process.host, sizeof(c->process.host));
    ddstore__add32(&b, c->beacon_fd);
    ddstore__add32(&b, c->ofi_bytes);
    ddstore__add_bytes(&b, c->beacon_token, 16);
    for (int i = 0; i < DDSTORE__ADDRESSES; i++)
        add_address(&b, &c->address[i]);
    ddstore__add_bytes(&b, c->provider, sizeof(c->provider));
    ddstore__add_bytes(&b, c->ofi, sizeof(c->ofi));
    ddstore__add64(&b, c->process.net_ns);
}

bool ddstore__contact_decode(const uint8_t *in, size_t bytes, ddstore__contact *out)
{
    ddstore__cursor c = {.at = in, .end = in + bytes};
    memset(out, 0, sizeof(*out));
    if (bytes != DDSTORE__CONTACT_BYTES || ddstore__take32(&c) != CONTACT_MAGIC)
        return false;
    out->process.pid = ddstore__take32(&c);
    ddstore__take_bytes(&c, out->uid, 16);
    ddstore__take_bytes(&c, out->process.boot_id, 16);
    out->process.pid_ns = ddstore__take64(&c);
    out->process.start_time = ddstore__take64(&c);
    ddstore__take_bytes(&c, out->process.host, sizeof(out->process.host));
    out->process.host[sizeof(out->process.host) - 1] = '\0';
    out->beacon_fd = ddstore__take32(&c);
    uint32_t ofi_bytes = ddstore__take32(&c);
    ddstore__take_bytes(&c, out->beacon_token, 16);
    for (int i = 0; i < DDSTORE__ADDRESSES; i++) {
        ddstore__address *a = &out->address[i];
        uint16_t family = ddstore__take16(&c);
        a->port = ddstore__take16(&c);
        a->scope = ddstore__take32(&c);
        ddstore__take_bytes(&c, a->ip, sizeof(a->ip));
        if (family != 0 && family != 4 && family != 6)
            return false;
        a->family = (uint8_t)family;
    }
    ddstore__take_bytes(&c, out->provider, sizeof(out->provider));
    out->provider[sizeof(out->provider) - 1] = '\0';
    ddstore__take_bytes(&c, out->ofi, sizeof(out->ofi));
    out->ofi_bytes = (uint8_t)ofi_bytes;
    out->process.net_ns = ddstore__take64(&c);
    return !c.bad && ofi_bytes <= DDSTORE__OFI_ADDRESS;
}

void ddstore__descriptor_encode(const ddstore__descriptor *d,
                                uint8_t out[DDSTORE__DESCRIPTOR_BYTES])
{
    ddstore__buffer b = fixed(out, DDSTORE__DESCRIPTOR_BYTES);
    ddstore__add32(&b, DESCRIPTOR_MAGIC);
    ddstore__add32(&b, d->fd);
    ddstore__add64(&b, d->id);
    ddstore__add64(&b, d->bytes);
    ddstore__add_bytes(&b, d->token, 16);
    ddstore__add64(&b, d->ofi_base);
    ddstore__add64(&b, d->ofi_key);
    ddstore__add_bytes(&b, d->owner, 16);
}

bool ddstore__descriptor_decode(const uint8_t *in, size_t bytes,
                                ddstore__descriptor *out)
{
    ddstore__cursor c = {.at = in, .end = in + bytes};
    memset(out, 0, sizeof(*out));
    if (bytes != DDSTORE__DESCRIPTOR_BYTES || ddstore__take32(&c) != DESCRIPTOR_MAGIC)
        return false;
    out->fd = ddstore__take32(&c);
    out->id = ddstore__take64(&c);
    out->bytes = ddstore__take64(&c);
    ddstore__take_bytes(&c, out->token, 16);
    out->ofi_base = ddstore__take64(&c);
    out->ofi_key = ddstore__take64(&c);
    ddstore__take_bytes(&c, out->owner, 16);
    return !c.bad && out->bytes < (1ULL << 62);
}

void ddstore__frame_encode(const ddstore__frame *f, uint8_t out[DDSTORE__FRAME_BYTES])
{
    memset(out, 0, DDSTORE__FRAME_BYTES);
    ddstore__put32(out, FRAME_MAGIC);
    out[4] = f->type;
    ddstore__put16(out + 6, f->status);
    ddstore__put32(out + 8, f->count);
    ddstore__put64(out + 16, f->segment);
    ddstore__put64(out + 24, f->bytes);
}

bool ddstore__frame_decode(const uint8_t in[DDSTORE__FRAME_BYTES], ddstore__frame *out)
{
    *out = (ddstore__frame){
        .type = in[4],
        .status = ddstore__get16(in + 6),
        .count = ddstore__get32(in + 8),
        .segment = ddstore__get64(in + 16),
        .bytes = ddstore__get64(in + 24),
    };
    return ddstore__get32(in) == FRAME_MAGIC && in[5] == 0 &&
           out->type >= DDSTORE__HELLO && out->type <= DDSTORE__CLOSING;
}

int64_t ddstore__request_body(const ddstore__frame *f)
{
    switch (f->type) {
    case DDSTORE__HELLO:
        return f->bytes == DDSTORE__HELLO_BYTES ? DDSTORE__HELLO_BYTES : -1;
    case DDSTORE__PROVE:
        return f->bytes == DDSTORE__PROVE_BYTES ? DDSTORE__PROVE_BYTES : -1;
    case DDSTORE__READ:
        return f->count && f->count <= DDSTORE__RUNS_MAX
                   ? (int64_t)f->count * DDSTORE__RUN_BYTES
                   : -1;
    case DDSTORE__RECORD:
        return f->bytes && f->bytes <= DDSTORE__TEXT_MAX ? (int64_t)f->bytes : -1;
    case DDSTORE__PING:
        return 0;
    default:
        return -1;
    }
}

void ddstore__proof(const uint8_t secret[16], char side, const uint8_t hello[64],
                    const uint8_t server_random[16], uint8_t out[16])
{
    uint8_t text[1 + 64 + 16] = {(uint8_t)side};
    memcpy(text + 1, hello, 64);
    memcpy(text + 65, server_random, 16);
    ddstore__siphash128(secret, text, sizeof(text), out);
}

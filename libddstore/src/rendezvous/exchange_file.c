/* Header and contents of exchange files: bounded, checksummed, little-endian. */
#include "exchange_file.h"

#define VERSION 1
#define AT_HASH (DDSTORE__EXCHANGE_HEADER - 8)

static const char magic[8] = "ddstorX";
static const char claim_magic[8] = "ddstorC";

static void put_process(uint8_t *p, const ddstore__process *from)
{
    memcpy(p, from->boot_id, 16);
    ddstore__put64(p + 16, from->pid_ns);
    ddstore__put64(p + 24, from->start_time);
    ddstore__put32(p + 32, from->pid);
    memcpy(p + 40, from->host, 64);
}

/* false: the host's name has no end. */
static bool get_process(const uint8_t *p, ddstore__process *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->boot_id, p, 16);
    out->pid_ns = ddstore__get64(p + 16);
    out->start_time = ddstore__get64(p + 24);
    out->pid = ddstore__get32(p + 32);
    memcpy(out->host, p + 40, 64);
    return out->host[63] == '\0';
}

static bool get_text(char *out, const uint8_t *in, size_t bytes)
{
    memcpy(out, in, bytes);
    return out[bytes - 1] == '\0';
}

void ddstore__exchange_encode(const ddstore__exchange *x,
                              uint8_t out[DDSTORE__EXCHANGE_HEADER])
{
    memset(out, 0, DDSTORE__EXCHANGE_HEADER);
    memcpy(out, magic, 8);
    ddstore__put32(out + 8, VERSION);
    ddstore__put32(out + 12, (uint32_t)x->type);
    ddstore__put64(out + 16, x->seq);
    ddstore__put32(out + 24, x->rank);
    ddstore__put32(out + 28, x->size);
    memcpy(out + 32, x->own, 16);
    memcpy(out + 48, x->run, 16);
    put_process(out + 64, &x->from);
    ddstore__put32(out + 100, x->op);
    ddstore__put64(out + 168, x->head_bytes);
    ddstore__put64(out + 176, x->body_bytes);
    ddstore__put64(out + 184, ddstore__hash64(x->head, x->head_bytes));
    ddstore__put64(out + 192, ddstore__hash64(x->body, x->body_bytes));
    memcpy(out + 200, x->ns, strnlen(x->ns, 103));
    memcpy(out + 304, x->identity, strnlen(x->identity, 255));
    ddstore__put64(out + AT_HASH, ddstore__hash64(out, AT_HASH));
}

static int parse_header(const uint8_t *p, ddstore__exchange *out)
{
    if (memcmp(p, magic, 8) != 0)
        return DDSTORE_EINVAL;
    if (ddstore__get32(p + 8) != VERSION)
        return DDSTORE_EUNSUPPORTED;
    if (ddstore__get64(p + AT_HASH) != ddstore__hash64(p, AT_HASH))
        return DDSTORE_EINVAL;
    out->type = (char)ddstore__get32(p + 12);
    out->seq = ddstore__get64(p + 16);
    out->rank = ddstore__get32(p + 24);
    out->size = ddstore__get32(p + 28);
    out->op = ddstore__get32(p + 100);
    memcpy(out->own, p + 32, 16);
    memcpy(out->run, p + 48, 16);
    out->head_bytes = ddstore__get64(p + 168);
    out->body_bytes = ddstore__get64(p + 176);
    bool whole = get_process(p + 64, &out->from);
    whole = get_text(out->ns, p + 200, 104) && whole;
    whole = get_text(out->identity, p + 304, 256) && whole;
    return whole ? DDSTORE_OK : DDSTORE_EINVAL;
}

int ddstore__exchange_parse(const void *data, size_t bytes, ddstore__exchange *out)
{
    const uint8_t *p = data;
    memset(out, 0, sizeof(*out));
    if (bytes < DDSTORE__EXCHANGE_HEADER)
        return DDSTORE_EKEY;
    int rc = parse_header(p, out);
    if (rc)
        return rc;
    uint64_t rest = bytes - DDSTORE__EXCHANGE_HEADER;
    if (out->head_bytes > rest || out->body_bytes > rest - out->head_bytes)
        return DDSTORE_EKEY;
    if (out->body_bytes != rest - out->head_bytes)
        return DDSTORE_EINVAL;
    out->head = p + DDSTORE__EXCHANGE_HEADER;
    out->body = p + DDSTORE__EXCHANGE_HEADER + out->head_bytes;
    if (ddstore__get64(p + 184) != ddstore__hash64(out->head, out->head_bytes) ||
        ddstore__get64(p + 192) != ddstore__hash64(out->body, out->body_bytes))
        return DDSTORE_EINVAL;
    return DDSTORE_OK;
}

void ddstore__entry_put(uint8_t *entry, uint32_t rank, const uint8_t own[16])
{
    ddstore__put32(entry, rank);
    memcpy(entry + 4, own, 16);
}

bool ddstore__entries_have(const ddstore__exchange *x, uint32_t rank,
                           const uint8_t own[16])
{
    const uint8_t *p = x->head;
    for (uint64_t i = 0; i + DDSTORE__ENTRY <= x->head_bytes; i += DDSTORE__ENTRY)
        if (ddstore__get32(p + i) == rank && memcmp(p + i + 4, own, 16) == 0)
            return true;
    return false;
}

int ddstore__offsets_parse(const ddstore__exchange *x, uint32_t size, uint64_t *offsets)
{
    if (x->head_bytes == 0) {
        memset(offsets, 0, ((size_t)size + 1) * sizeof(*offsets));
        return x->body_bytes ? DDSTORE_EINVAL : DDSTORE_OK;
    }
    const uint8_t *p = x->head;
    if (x->head_bytes != ((uint64_t)size + 1) * 8)
        return DDSTORE_EINVAL;
    uint64_t last = 0;
    for (uint32_t i = 0; i <= size; i++) {
        offsets[i] = ddstore__get64(p + (size_t)i * 8);
        if (offsets[i] < last || (i == 0 && offsets[i]))
            return DDSTORE_EINVAL;
        last = offsets[i];
    }
    return last == x->body_bytes ? DDSTORE_OK : DDSTORE_EINVAL;
}

void ddstore__note_put(const ddstore_error *why, uint8_t *out, size_t *bytes)
{
    size_t n = strnlen(why->message, sizeof(why->message) - 1);
    ddstore__put32(out, (uint32_t)why->code);
    memcpy(out + 4, why->message, n);
    *bytes = 4 + n;
}

bool ddstore__note_parse(const ddstore__exchange *x, ddstore_error *out)
{
    const uint8_t *p = x->body;
    if (x->body_bytes < 4 || x->body_bytes > DDSTORE__NOTE_LONGEST - 1)
        return false;
    size_t n = (size_t)x->body_bytes - 4;
    out->code = (int)ddstore__get32(p);
    memcpy(out->message, p + 4, n);
    out->message[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out->message[i] < ' ')
            out->message[i] = '?';
    return out->code < 0 && out->code >= DDSTORE_EFORKED;
}

/* -- claims: a part that never changes, a counter with a check of its own, the contact
 * -- */

void ddstore__claim_encode_live(const ddstore__claim_image *claim, uint8_t out[24])
{
    uint8_t mixed[24];
    memcpy(mixed, claim->nonce, 16);
    ddstore__put64(mixed + 16, claim->counter);
    memset(out, 0, 24);
    ddstore__put64(out, claim->counter);
    ddstore__put64(out + 16, ddstore__hash64(mixed, sizeof(mixed)));
}

void ddstore__claim_encode(const ddstore__claim_image *claim, uint8_t *out)
{
    memset(out, 0, DDSTORE__CLAIM_FIXED);
    memcpy(out, claim_magic, 8);
    ddstore__put32(out + 8, VERSION);
    ddstore__put32(out + 12, claim->size);
    memcpy(out + 16, claim->nonce, 16);
    put_process(out + 32, &claim->holder);
    memcpy(out + 136, claim->ns, strnlen(claim->ns, 103));
    memcpy(out + 240, claim->identity, strnlen(claim->identity, 255));
    ddstore__put32(out + 496, claim->contact_bytes);
    ddstore__put64(out + 504, ddstore__hash64(claim->contact, claim->contact_bytes));
    ddstore__put64(out + 512, ddstore__hash64(out, 512));
    ddstore__claim_encode_live(claim, out + DDSTORE__CLAIM_LIVE);
    if (claim->contact_bytes)
        memcpy(out + DDSTORE__CLAIM_FIXED, claim->contact, claim->contact_bytes);
}

int ddstore__claim_parse(const void *data, size_t bytes, ddstore__claim_image *out)
{
    const uint8_t *p = data;
    uint8_t live[24];
    memset(out, 0, sizeof(*out));
    if (bytes < DDSTORE__CLAIM_FIXED)
        return DDSTORE_EKEY;
    if (memcmp(p, claim_magic, 8) != 0)
        return DDSTORE_EINVAL;
    if (ddstore__get32(p + 8) != VERSION)
        return DDSTORE_EUNSUPPORTED;
    if (ddstore__get64(p + 512) != ddstore__hash64(p, 512))
        return DDSTORE_EINVAL;
    out->size = ddstore__get32(p + 12);
    memcpy(out->nonce, p + 16, 16);
    bool whole = get_process(p + 32, &out->holder);
    whole = get_text(out->ns, p + 136, 104) && whole;
    whole = get_text(out->identity, p + 240, 256) && whole;
    out->contact_bytes = ddstore__get32(p + 496);
    if (!whole || out->contact_bytes > DDSTORE__CONTACT_LONGEST)
        return DDSTORE_EINVAL;
    if (bytes != DDSTORE__CLAIM_FIXED + (size_t)out->contact_bytes)
        return bytes < DDSTORE__CLAIM_FIXED + (size_t)out->contact_bytes
                   ? DDSTORE_EKEY
                   : DDSTORE_EINVAL;
    out->contact = p + DDSTORE__CLAIM_FIXED;
    if (ddstore__get64(p + 504) != ddstore__hash64(out->contact, out->contact_bytes))
        return DDSTORE_EINVAL;
    out->counter = ddstore__get64(p + DDSTORE__CLAIM_LIVE);
    ddstore__claim_encode_live(out, live);
    out->counter_valid = memcmp(live, p + DDSTORE__CLAIM_LIVE, 24) == 0;
    return DDSTORE_OK;
}

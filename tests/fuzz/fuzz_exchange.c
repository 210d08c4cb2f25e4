/* Fuzzes what parses exchange files, claim files and their names: no input may be read
 * beyond its end, and what is accepted must come out the same when written again. */
#include "rendezvous/exchange_file.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* The hashes would hide all that lies behind them: each input is also tried with right
 * ones. */
static void mend_exchange(uint8_t *p, size_t n)
{
    if (n < DDSTORE__EXCHANGE_HEADER)
        return;
    uint64_t rest = n - DDSTORE__EXCHANGE_HEADER, head = ddstore__get64(p + 168);
    if (head <= rest) {
        const uint8_t *at = p + DDSTORE__EXCHANGE_HEADER;
        ddstore__put64(p + 184, ddstore__hash64(at, head));
        ddstore__put64(p + 192, ddstore__hash64(at + head, rest - head));
    }
    ddstore__put64(p + 560, ddstore__hash64(p, 560));
}

static void mend_claim(uint8_t *p, size_t n)
{
    if (n < DDSTORE__CLAIM_FIXED)
        return;
    ddstore__put64(p + 504,
                   ddstore__hash64(p + DDSTORE__CLAIM_FIXED, n - DDSTORE__CLAIM_FIXED));
    ddstore__put64(p + 512, ddstore__hash64(p, 512));
}

static void try_exchange(const uint8_t *data, size_t size)
{
    ddstore__exchange x, again;
    ddstore_error note;
    uint64_t offsets[65];
    uint8_t own[16] = {0};
    if (ddstore__exchange_parse(data, size, &x))
        return;
    must(x.head_bytes + x.body_bytes == size - DDSTORE__EXCHANGE_HEADER);
    must(strlen(x.ns) < sizeof(x.ns) && strlen(x.identity) < sizeof(x.identity));
    (void)ddstore__entries_have(&x, 1, own);
    if (ddstore__note_parse(&x, &note))
        must(strlen(note.message) < sizeof(note.message) && note.code < 0);
    for (uint32_t n = 1; n <= 64; n++)
        if (ddstore__offsets_parse(&x, n, offsets) == DDSTORE_OK)
            must(offsets[0] == 0 && offsets[n] == x.body_bytes);
    uint8_t *copy = malloc(size);
    must(copy != NULL);
    memcpy(copy, data, size);
    ddstore__exchange_encode(&x, copy);
    must(ddstore__exchange_parse(copy, size, &again) == DDSTORE_OK);
    must(again.type == x.type && again.seq == x.seq && strcmp(again.ns, x.ns) == 0);
    free(copy);
}

static void try_claim(const uint8_t *data, size_t size)
{
    ddstore__claim_image c, again;
    if (ddstore__claim_parse(data, size, &c))
        return;
    must(c.contact_bytes == size - DDSTORE__CLAIM_FIXED);
    uint8_t *copy = malloc(size);
    must(copy != NULL);
    ddstore__claim_encode(&c, copy);
    must(ddstore__claim_parse(copy, size, &again) == DDSTORE_OK && again.counter_valid);
    must(again.counter == c.counter && strcmp(again.ns, c.ns) == 0);
    free(copy);
}

static void try_name(const uint8_t *data, size_t size)
{
    char text[DDSTORE__EXCHANGE_NAME + 1], back[DDSTORE__EXCHANGE_NAME];
    ddstore__exchange_name name;
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    if (!ddstore__exchange_name_parse(text, &name))
        return;
    ddstore__exchange_name_format(&name, back);
    must(strcmp(text, back) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    must(copy != NULL);
    try_exchange(data, size);
    try_claim(data, size);
    try_name(data, size);
    if (size)
        memcpy(copy, data, size);
    mend_exchange(copy, size);
    try_exchange(copy, size);
    if (size)
        memcpy(copy, data, size);
    mend_claim(copy, size);
    try_claim(copy, size);
    free(copy);
    return 0;
}

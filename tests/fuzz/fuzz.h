/* What the fuzz targets share: checks that end the process where one doesn't hold. */
#ifndef FUZZ_H
#define FUZZ_H

#include "wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void must(bool holds)
{
    if (!holds)
        abort();
}

/* The first byte of an input, which says how the rest is used; 0 where there is none.
 */
static inline uint8_t take_mode(const uint8_t **data, size_t *size)
{
    if (!*size)
        return 0;
    (*size)--;
    return *(*data)++;
}

/* Tries an input as it is, and with the checksum that its last 8 bytes are to be, which
 * would hide what lies behind it. */
static inline void try_mended(const uint8_t *data, size_t size,
                              void (*try)(const uint8_t *data, size_t size))
{
    try(data, size);
    if (size < 8)
        return;
    uint8_t *mended = malloc(size);
    must(mended != NULL);
    memcpy(mended, data, size);
    ddstore__put64(mended + size - 8, ddstore__hash64(mended, size - 8));
    try(mended, size);
    free(mended);
}

#endif

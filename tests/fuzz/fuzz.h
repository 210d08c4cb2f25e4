/* What the fuzz targets share: checks that end the process where one doesn't hold. */
#ifndef FUZZ_H
#define FUZZ_H

#include "base.h"

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

#endif

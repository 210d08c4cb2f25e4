/* Fuzzes the texts that come out of a launcher's key-value space: what is taken has
 * exactly one text. */
#include "fuzz.h"

#include "rendezvous/base64.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[336];
    char text[DDSTORE__BASE64_CHARS(336) + 1];
    size_t room = size % 2 ? sizeof(bytes) : 8;
    ptrdiff_t n = ddstore__base64_decode((const char *)data, size, bytes, room);
    must(n >= -1 && n <= (ptrdiff_t)room);
    if (n < 0)
        return 0;
    ddstore__base64_encode(bytes, (size_t)n, text);
    must(strlen(text) == size && memcmp(text, data, size) == 0);
    return 0;
}

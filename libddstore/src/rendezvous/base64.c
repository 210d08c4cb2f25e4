/* Bytes as text: base64. */
#include "base64.h"

static const char digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void ddstore__base64_encode(const uint8_t *in, size_t bytes, char *out)
{
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = 0; i < bytes; i++) {
        bits = bits << 8 | in[i];
        for (held += 8; held >= 6; held -= 6)
            *out++ = digits[bits >> (held - 6) & 63];
    }
    if (held)
        *out++ = digits[bits << (6 - held) & 63];
    *out = '\0';
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

ptrdiff_t ddstore__base64_decode(const char *in, size_t n, uint8_t *out, size_t room)
{
    uint32_t bits = 0;
    int held = 0;
    size_t bytes = 0;
    if (n % 4 == 1)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int value = value_of(in[i]);
        if (value < 0)
            return -1;
        bits = bits << 6 | (uint32_t)value;
        held += 6;
        if (held < 8)
            continue;
        if (bytes == room)
            return -1;
        held -= 8;
        out[bytes++] = (uint8_t)(bits >> held);
    }
    return bits & ((1u << held) - 1) ? -1 : (ptrdiff_t)bytes; /* one text a value */
}

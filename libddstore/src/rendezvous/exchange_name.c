/* File names of variables: reversible, distinct whatever the file system folds. */
#include "exchange_dir.h"

#include <stdio.h>

#define NAME_LONGEST   200
#define PREFIX_LONGEST 120

static bool is_lower_or_digit(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static bool is_plain(const char *name)
{
    size_t n = 0;
    for (; name[n]; n++)
        if (!is_lower_or_digit((unsigned char)name[n]) &&
            !(name[n] >= 'A' && name[n] <= 'Z'))
            return false;
    return n >= 1 && n <= NAME_LONGEST;
}

/* Capitals are escaped too, so that two escaped names differ by more than their case.
 * Every escaped name holds a '%', which no plain one has; "%-" only stands before a
 * hash. */
void ddstore__escape_name(const char *name, char out[256])
{
    if (is_plain(name)) {
        memcpy(out, name, strlen(name) + 1);
        return;
    }
    size_t used = 0, prefix = 0;
    const unsigned char *p = (const unsigned char *)name;
    for (; *p && used + 3 <= NAME_LONGEST; p++) {
        if (is_lower_or_digit(*p))
            out[used++] = (char)*p;
        else
            used += (size_t)snprintf(out + used, 4, "%%%02x", *p);
        if (used <= PREFIX_LONGEST)
            prefix = used;
    }
    out[used] = '\0';
    if (!*p && used)
        return;
    uint8_t hash[16];
    char hex[33];
    ddstore__hash128(name, strlen(name), hash);
    ddstore__hex16(hash, hex);
    snprintf(out + prefix, 256 - prefix, "%%-%s", hex);
}

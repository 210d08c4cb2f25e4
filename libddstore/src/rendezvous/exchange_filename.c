/* Names of exchange files: a letter, then rank, nonces and number, parted by dots. */
#include "exchange_file.h"

#include <stdio.h>

/* Which parts follow the letter: r rank, o own nonce, n run nonce, # number. */
static const char *parts_of(char type)
{
    switch (type) {
    case DDSTORE__X_HELLO:
        return "ro";
    case DDSTORE__X_ACK:
        return "ron#";
    case DDSTORE__X_PART:
        return "rn#";
    case DDSTORE__X_FAILED:
    case DDSTORE__X_REFUSED:
        return "ron";
    case DDSTORE__X_PROPOSAL:
    case DDSTORE__X_COMMIT:
    case DDSTORE__X_STEP:
        return "n#";
    case DDSTORE__X_ABORT:
        return "n";
    default:
        return NULL;
    }
}

void ddstore__exchange_name_format(const ddstore__exchange_name *name,
                                   char out[DDSTORE__EXCHANGE_NAME])
{
    int used = snprintf(out, DDSTORE__EXCHANGE_NAME, "%c", name->type);
    for (const char *part = parts_of(name->type); part && *part; part++) {
        char hex[33];
        size_t room = (size_t)(DDSTORE__EXCHANGE_NAME - used);
        if (*part == 'r') {
            used += snprintf(out + used, room, ".%u", name->rank);
        } else if (*part == '#') {
            used +=
                snprintf(out + used, room, ".%llu", (unsigned long long)name->number);
        } else {
            ddstore__hex16(*part == 'o' ? name->own : name->run, hex);
            used += snprintf(out + used, room, ".%s", hex);
        }
    }
}

static bool take_number(const char **text, uint64_t max, uint64_t *out)
{
    const char *p = *text;
    uint64_t n = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (n > (max - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    *text = p;
    *out = n;
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_nonce(const char **text, uint8_t out[16])
{
    const char *p = *text;
    for (int i = 0; i < 16; i++) {
        int high = hex_digit(p[0]);
        int low = high < 0 ? -1 : hex_digit(p[1]);
        if (low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
        p += 2;
    }
    *text = p;
    return true;
}

bool ddstore__exchange_name_parse(const char *text, ddstore__exchange_name *out)
{
    memset(out, 0, sizeof(*out));
    out->type = *text;
    const char *part = parts_of(*text);
    if (!part)
        return false;
    for (text++; *part; part++) {
        uint64_t rank = 0;
        bool good = *text++ == '.';
        if (good && *part == 'r')
            good = take_number(&text, INT32_MAX, &rank), out->rank = (uint32_t)rank;
        else if (good && *part == '#')
            good = take_number(&text, UINT64_MAX, &out->number);
        else if (good)
            good = take_nonce(&text, *part == 'o' ? out->own : out->run);
        if (!good)
            return false;
    }
    return *text == '\0';
}

/* Bytes as text that every key-value space carries: base64 (RFC 4648, without padding).
 */
#ifndef DDSTORE_BASE64_H
#define DDSTORE_BASE64_H

#include "../base.h"

#define DDSTORE__BASE64_CHARS(bytes) (((bytes)*4 + 2) / 3) /* the end not included */

/* Writes DDSTORE__BASE64_CHARS(bytes) characters and a NUL. */
void ddstore__base64_encode(const uint8_t *in, size_t bytes, char *out);

/* Reads n characters into at most `room` bytes. -1: that is no such text, or has more.
 */
ptrdiff_t ddstore__base64_decode(const char *in, size_t n, uint8_t *out, size_t room);

#endif

/* The loop of memcpy that the benchmarks in Python measure against. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

EXPORT void copy_rows(void *dst, const void *src, const int64_t *rows, size_t n,
                      size_t row_bytes);

/* Row i of dst becomes row rows[i] of src. */
void copy_rows(void *dst, const void *src, const int64_t *rows, size_t n,
               size_t row_bytes)
{
    for (size_t i = 0; i < n; i++)
        memcpy((uint8_t *)dst + i * row_bytes,
               (const uint8_t *)src + (size_t)rows[i] * row_bytes, row_bytes);
}

/* The reference for path 2: rows read by bare fi_read, with no line of the library in
 * it. */
#ifndef FI_READ_RAW_H
#define FI_READ_RAW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct raw_fi_client raw_fi_client;

/* Exposes [base, base + bytes) on the provider ("tcp;ofi_rxm", "sockets"), writes what
 * a client needs to publish_fd, and serves in the calling thread until *stop is
 * non-zero (looked at once a second). spin: by polling, else asleep. Returns 0 or
 * libfabric's negative code. */
int raw_fi_serve(const char *provider, void *base, size_t bytes, int publish_fd,
                 bool spin, const atomic_int *stop);

/* Opens a client of the server that wrote to fd. Close with raw_fi_close. */
int raw_fi_open(const char *provider, int fd, raw_fi_client **out);
void raw_fi_close(raw_fi_client *client);

/* Reads n rows of row_bytes, row i from offsets[i] (bytes from base) to dst + i *
 * row_bytes, at most `outstanding` in flight. spin: waits by polling, else asleep. */
int raw_fi_read_rows(raw_fi_client *client, const uint64_t *offsets, size_t n,
                     size_t row_bytes, void *dst, size_t outstanding, bool spin);

#endif

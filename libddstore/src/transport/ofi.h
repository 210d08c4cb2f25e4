/*
 * Path 2: one-sided reads by libfabric, which is loaded at run time. One domain a
 * process; reader contexts (endpoint and completion queue on the shared domain and
 * address vector) from a pool, one a reading thread. Knows addresses, keys and memory;
 * no rows, no stores.
 */
#ifndef DDSTORE_OFI_H
#define DDSTORE_OFI_H

#include "../settings.h"

typedef struct ddstore__ofi ddstore__ofi;       /* the process's domain */
typedef struct ddstore__ofi_mr ddstore__ofi_mr; /* registered memory */
typedef struct ddstore__ofi_peer ddstore__ofi_peer;

#define DDSTORE__OFI_ADDRESS_MAX 128

/* Opens the provider that settings->fabric asks for (auto: hardware, where this host
 * has it) on settings->iface, if given, and starts serving. Of candidates that are as
 * good, one on the interface `nearest` ("": none) is taken. DDSTORE_EFABRIC lists every
 * candidate and why it was dropped; *out NULL and 0: tcp, hsn, or auto on a host
 * without such hardware or where it can't be used, which is logged as a warning. */
int ddstore__ofi_open(const ddstore__settings *settings, const char *nearest,
                      ddstore__ofi **out, ddstore_error *err);
/* No read runs any more, and exposures were released. Never waits for a peer.
 * Afterwards nothing arrives any more in anybody's memory, of abandoned reads either.
 */
void ddstore__ofi_close(ddstore__ofi *ofi);
/* In a forked child: forgets everything without a call into libfabric. */
void ddstore__ofi_drop(ddstore__ofi *ofi);

const char *ddstore__ofi_provider(const ddstore__ofi *ofi); /* e.g. "tcp;ofi_rxm" */
size_t ddstore__ofi_address(const ddstore__ofi *ofi,
                            uint8_t out[DDSTORE__OFI_ADDRESS_MAX]);

/* Lets peers read [base, base + bytes): *remote_base and *key are what they need. */
int ddstore__ofi_expose(ddstore__ofi *ofi, void *base, uint64_t bytes,
                        uint64_t *remote_base, uint64_t *key, ddstore__ofi_mr **out,
                        ddstore_error *err);
/* Takes an exposure or a registration back. NULL does nothing. */
void ddstore__ofi_release(ddstore__ofi_mr *mr);

/* A peer by its address; the address is inserted on the first read. */
int ddstore__ofi_peer_open(ddstore__ofi *ofi, const uint8_t *address, size_t bytes,
                           ddstore__ofi_peer **out, ddstore_error *err);
void ddstore__ofi_peer_close(ddstore__ofi_peer *peer);

/* Registers a destination that is used again; any slice of it then needs no
 * registration of its own. The same range twice does nothing; unknown ranges:
 * DDSTORE_EINVAL. */
int ddstore__ofi_register(ddstore__ofi *ofi, void *data, uint64_t bytes,
                          ddstore_error *err);
int ddstore__ofi_unregister(ddstore__ofi *ofi, void *data, uint64_t bytes,
                            ddstore_error *err);

/* One contiguous piece: `bytes` bytes at `address` (remote base + offset) under `key`.
 */
typedef struct ddstore__ofi_piece {
    ddstore__ofi_peer *peer;
    uint64_t address, key, bytes;
    uint8_t *dst;
    uint32_t tag; /* the caller's: which peer to name when it is late */
} ddstore__ofi_piece;

typedef struct ddstore__ofi_job {
    const ddstore__ofi_piece *pieces;
    size_t n;
    int64_t timeout_ns;       /* without progress */
    const atomic_int *closed; /* as in ddstore__wait */
    /* Asked when nothing has completed for 100 ms, then every second: 0 the peer of
     * that tag lives, else a negative code with err filled, which ends the read. */
    int (*late)(void *arg, uint32_t tag, ddstore_error *err);
    void *arg;
    /* out, for get_profile */
    int64_t mr_ns, post_ns, wait_ns;
    uint64_t registrations;
} ddstore__ofi_job;

/* Reads all pieces, as many in flight as the queues allow, split by max_read_bytes and
 * the provider's limit. Any thread. On failure nothing of the destinations is
 * guaranteed; where bytes may still arrive, the endpoint and the bounce memory are set
 * aside, and err says so (late, and in words) if it is the caller's own buffer, which
 * must then stay alive until ddstore__ofi_close. */
int ddstore__ofi_read(ddstore__ofi *ofi, ddstore__ofi_job *job, ddstore_error *err);

/* For ddstore_probe: appends lines "libfabric\t...", "provider\tNAME: taken/dropped,
 * why". */
int ddstore__ofi_probe(const ddstore__settings *settings, const char *nearest,
                       char **text, size_t *bytes);

#endif

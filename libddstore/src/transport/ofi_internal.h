/* What the rooms of transport/ofi share: the domain, reader contexts, memory, the
 * choice. */
#ifndef DDSTORE_OFI_INTERNAL_H
#define DDSTORE_OFI_INTERNAL_H

#include "ofi.h"
#include "ofi_load.h"

#include <pthread.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#define DDSTORE__OFI_BOUNCE_BYTES 16384 /* the longest piece that is copied */
#define DDSTORE__OFI_BOUNCE_COUNT 128   /* slots a reader */
#define DDSTORE__OFI_PEER_LISTS   1024
#define DDSTORE__OFI_MR_MODES                                                          \
    (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT)

/* -- ofi_choose.c -- */

typedef struct ddstore__ofi_candidate {
    struct fi_info *info;
    bool wanted;   /* it is what DDSTORE_FABRIC asks for */
    int rank;      /* less is better */
    char why[256]; /* it was dropped; "": it was not */
} ddstore__ofi_candidate;

typedef struct ddstore__ofi_choice {
    const ddstore__ofi_api *api;
    const char *nearest;         /* the caller's */
    struct fi_info *lists[4];    /* as the queries gave them */
    ddstore__ofi_candidate *all; /* those that were not dropped first, best first */
    size_t n;
} ddstore__ofi_choice;

/* Whether this host has hardware that libfabric serves; root is "" but in tests. */
bool ddstore__ofi_hardware(const char *root, const char *provider);

/* Whether `name` (a provider's full name) is what `wanted` ("tcp", "tcp;ofi_rxm") asks.
 */
bool ddstore__ofi_name_matches(const char *name, const char *wanted);

/* "PROVIDER on DOMAIN (FABRIC)", for messages. */
void ddstore__ofi_describe(const struct fi_info *info, char *out, size_t bytes);

/* All candidates, judged; of those that are as good, the ones on the interface
 * `nearest` ("": none) come first. */
int ddstore__ofi_choose(const ddstore__settings *settings, const char *nearest,
                        const ddstore__ofi_api *api, ddstore__ofi_choice *out,
                        ddstore_error *err);
/* Fills err with every candidate and why it was dropped. Returns DDSTORE_EFABRIC. */
int ddstore__ofi_choice_report(const ddstore__ofi_choice *choice,
                               const ddstore__settings *settings, ddstore_error *err);
void ddstore__ofi_choice_free(ddstore__ofi_choice *choice);

/* -- ofi_iface.c -- */

bool ddstore__ofi_on_iface(const struct fi_info *info, const char *iface);
bool ddstore__ofi_by_ip(const struct fi_info *info);         /* addressed by IP */
bool ddstore__ofi_virtual_iface(const struct fi_info *info); /* lo, docker0, ... */
bool ddstore__ofi_link_local(const struct fi_info *info);    /* fe80::... */

/* -- ofi_reader.c -- */

/* A domain with its addresses. */
typedef struct ddstore__ofi_side {
    struct fid_domain *domain;
    struct fid_av *av;
} ddstore__ofi_side;

typedef struct ddstore__ofi_op {
    struct fi_context2 context; /* the provider's, while the read is in flight */
    struct ddstore__ofi_op *next;
    const ddstore__ofi_piece *piece; /* read only while the job runs */
    uint64_t offset, bytes;          /* part of the piece */
    uint8_t *dst;
    uint8_t *bounce;   /* the slot that the bytes arrive in; NULL: dst itself */
    struct fid_mr *mr; /* registered for this read alone; nullable */
    bool in_flight;
} ddstore__ofi_op;

typedef struct ddstore__ofi_reader {
    struct ddstore__ofi_reader *next;
    struct fid_ep *ep;
    struct fid_cq *cq;
    ddstore__ofi_op *ops, *free_ops;
    size_t n_ops, in_flight;
    uint8_t *bounce; /* only where the provider wants local memory registered */
    struct fid_mr *bounce_mr;
    uint8_t **free_bounce;
    size_t n_free_bounce;
    struct fid_mr *call_mr; /* the whole destination of the call, or NULL */
    uint64_t call_start, call_end;
} ddstore__ofi_reader;

/* An error of a completion queue, with room for what newer libraries add at the end. */
typedef union ddstore__ofi_cq_error {
    struct fi_cq_err_entry entry;
    char room[256];
} ddstore__ofi_cq_error;

/* Opens an endpoint with its completion queue on that side's domain. */
int ddstore__ofi_endpoint(ddstore__ofi *ofi, const ddstore__ofi_side *side,
                          struct fid_ep **ep, struct fid_cq **cq, ddstore_error *err);
int ddstore__ofi_acquire(ddstore__ofi *ofi, ddstore__ofi_reader **out,
                         ddstore_error *err);
/* Gives a reader back; with reads still in flight it is set aside until they have
 * ended. */
void ddstore__ofi_give_back(ddstore__ofi *ofi, ddstore__ofi_reader *reader);
/* Closes a reader. */
void ddstore__ofi_retire(ddstore__ofi *ofi, ddstore__ofi_reader *reader);
/* Takes one op's resources back after its completion; copied: the bytes are wanted. */
void ddstore__ofi_op_done(ddstore__ofi_reader *reader, ddstore__ofi_op *op,
                          bool copied);
/* The op of a completion's context, or NULL if it is none of this reader's. */
ddstore__ofi_op *ddstore__ofi_op_of(ddstore__ofi_reader *reader, void *context);
/* Closes set-aside readers whose reads have ended. Returns how many are left. */
size_t ddstore__ofi_reap(ddstore__ofi *ofi);
/* Closes all idle readers, and set-aside ones as far as that is safe. Returns how many
 * had to be left open. */
size_t ddstore__ofi_close_readers(ddstore__ofi *ofi);

/* -- ofi_memory.c -- */

struct ddstore__ofi_mr {
    ddstore__ofi *ofi;
    struct fid_mr *mr;
    unsigned generation;
};

typedef struct ddstore__ofi_range { /* a registered destination */
    uint64_t start, end;
    uint64_t reach;    /* the furthest end of this and all earlier ranges */
    struct fid_mr *mr; /* NULL where the provider needs none */
} ddstore__ofi_range;

typedef struct ddstore__ofi_keys {
    uint8_t secret[16];
    atomic_uint_least64_t count;
} ddstore__ofi_keys;

/* The next key of `bytes` bytes: no key comes twice before all have come. */
uint64_t ddstore__ofi_next_key(ddstore__ofi_keys *keys, size_t bytes);

/* Registers memory as destination of ep's reads. */
int ddstore__ofi_local_mr(ddstore__ofi *ofi, struct fid_ep *ep, void *data,
                          uint64_t bytes, struct fid_mr **out, ddstore_error *err);
/* Finds or makes where the op's bytes arrive: *target and *desc. 1: no bounce slot is
 * free just now. */
int ddstore__ofi_place(ddstore__ofi *ofi, ddstore__ofi_reader *reader,
                       ddstore__ofi_op *op, ddstore__ofi_job *job, uint8_t **target,
                       void **desc, ddstore_error *err);
/* Where local memory must be registered: registers the hull of a job's large pieces at
 * once if they fill most of it. Failure is no error, pieces then go one by one. */
void ddstore__ofi_register_call(ddstore__ofi *ofi, ddstore__ofi_reader *reader,
                                ddstore__ofi_job *job);
void ddstore__ofi_forget_ranges(ddstore__ofi *ofi);

/* -- ofi.c -- */

typedef struct ddstore__ofi_known { /* an address that was inserted; never removed */
    struct ddstore__ofi_known *next;
    fi_addr_t addr;
    size_t bytes;
    uint8_t address[];
} ddstore__ofi_known;

struct ddstore__ofi_peer {
    ddstore__ofi *ofi;
    atomic_uint_least64_t addr; /* FI_ADDR_UNSPEC: not inserted yet */
    size_t bytes;
    uint8_t address[DDSTORE__OFI_ADDRESS_MAX];
};

/* Locks: none is taken while another is held. `domain_lock`: address vector, `known`,
 * and calls that register memory; `pool_lock`: idle, aside; `ranges_lock`: ranges. */
struct ddstore__ofi {
    const ddstore__ofi_api *api;
    struct ddstore__ofi *next_kept; /* of those that could not be closed */
    unsigned generation;
    struct fi_info *info;
    struct fid_fabric *fabric;
    ddstore__ofi_side serving, reading; /* mostly one and the same */
    struct fid_ep *ep;                  /* serves the peers' reads */
    struct fid_cq *cq;
    bool can_sleep; /* completion queues have wait objects */
    bool has_server;
    pthread_t server;
    atomic_int stop;
    char provider[96], domain_name[96];
    uint8_t address[DDSTORE__OFI_ADDRESS_MAX];
    size_t address_bytes;
    uint64_t mr_mode; /* FI_MR_... */
    size_t depth;     /* reads in flight, at most, a reader */
    atomic_uint_least64_t max_piece;
    ddstore__ofi_keys keys;
    uint8_t
        *test_memory; /* of the self-test; the server may look at it a little longer */

    pthread_mutex_t domain_lock;
    ddstore__ofi_known *known[DDSTORE__OFI_PEER_LISTS];

    pthread_mutex_t pool_lock;
    ddstore__ofi_reader *idle, *aside;
    atomic_size_t n_aside;

    pthread_rwlock_t ranges_lock;
    ddstore__ofi_range *ranges; /* by start */
    atomic_size_t n_ranges;     /* written under ranges_lock */
};

/* Fills err with "what: text of libfabric's code rc". Returns DDSTORE_EFABRIC, or
 * DDSTORE_ENOMEM. */
int ddstore__ofi_fail(const ddstore__ofi *ofi, ddstore_error *err, int rc,
                      const char *what);

/* The peer's address handle; inserts the address the first time. */
int ddstore__ofi_peer_addr(ddstore__ofi_peer *peer, fi_addr_t *out, ddstore_error *err);

/* -- ofi_server.c -- */

int ddstore__ofi_server_start(ddstore__ofi *ofi, ddstore_error *err);
void ddstore__ofi_server_stop(ddstore__ofi *ofi);

#endif

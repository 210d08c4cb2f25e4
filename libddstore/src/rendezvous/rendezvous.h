/* The contract of a rendezvous back end: how the members of a group exchange bytes. */
#ifndef DDSTORE_RENDEZVOUS_H
#define DDSTORE_RENDEZVOUS_H

#include "../base.h"

#define DDSTORE__NS_LONGEST 100 /* bytes of a group's name */

typedef struct ddstore__rendezvous_ops {
    const char *name;

    /* A collective that timed out here may still go on elsewhere: a store over it must
     * end, so that the others hear of it. */
    bool ends_by_timeout;

    /* Gathers every rank's bytes: *data (malloc'd, never NULL on success) and
     * offsets[0..size]. Blocks until all members have called, the comm's deadline
     * passes (DDSTORE_ETIMEDOUT, naming the missing ranks), it is woken
     * (DDSTORE_ECLOSED) or the host interrupts (DDSTORE_EINTR). After a failure the
     * comm only closes. */
    int (*allgatherv)(ddstore_comm *comm, const void *mine, size_t bytes, void **data,
                      uint64_t *offsets, ddstore_error *err);

    /* As an allgatherv of nothing. Nullable: then that is what is done. */
    int (*barrier)(ddstore_comm *comm, ddstore_error *err);

    /* Whether this group still holds its namespace; asked by rank 0 before it
     * publishes. Nullable: it always does. */
    int (*may_publish)(ddstore_comm *comm, ddstore_error *err);

    /* Local; never waits for another member. Frees comm. */
    void (*close)(ddstore_comm *comm);
} ddstore__rendezvous_ops;

/* Looks after those whom a collective waits for; given by the store, which knows how to
 * ask them. */
typedef struct ddstore__watch {
    /* Between two looks at whether a collective that began then is over. Not 0: it
     * never will be, and whose fault that is. */
    int (*look)(void *arg, int64_t begun_ns, ddstore_error *err);
    /* Asks one rank. Not 0: it is gone, or has left the group. */
    int (*gone)(void *arg, int rank, ddstore_error *err);
    /* The ranks that are known not to have come, as text; "" where none is. */
    void (*missing)(void *arg, char *text, size_t bytes);
    void *arg;
} ddstore__watch;

/* Which collective call of a store a collective belongs to. */
typedef enum ddstore__call {
    DDSTORE__CALL_MEET, /* to open it, or of no store */
    DDSTORE__CALL_ADD,
    DDSTORE__CALL_EPOCH,
    DDSTORE__CALL_BATCH,
    DDSTORE__CALL_FREE,
} ddstore__call;

/* The head of every back end's own struct. */
struct ddstore_comm {
    const ddstore__rendezvous_ops *ops;
    int rank, size;
    int broken;         /* a collective failed: code of later calls */
    bool in_step;       /* the last one did, in the same way on all ranks: they go on */
    ddstore__call call; /* that is running */
    atomic_int closed;  /* set by ddstore_comm_wake */
    unsigned fork_generation;
    const ddstore__watch *watch; /* nullable */
    atomic_ullong *steps;        /* nullable: counts the collectives entered */
};

/* -- callback.c, for method 0: collectives whose first words all ranks know -- */

typedef struct ddstore__gather_head {
    uint16_t kind, call; /* of the collective, so that no two are mixed */
    int32_t code;        /* of this rank's own failure */
    uint64_t word[3];
} ddstore__gather_head;

#define DDSTORE__GATHER_BATCH 2u

/* Gathers one head of every rank. DDSTORE_ECONFLICT where a rank is in a collective of
 * another kind or of another call, DDSTORE_ECLOSED where that is to free the store.
 * mine->call is the comm's. ddstore__comm_enter comes before it, ddstore__comm_leave
 * behind. */
int ddstore__callback_enter(ddstore_comm *comm, const ddstore__gather_head *mine,
                            ddstore__gather_head *all, ddstore_error *err);
int ddstore__callback_gather(ddstore_comm *comm, const void *mine, size_t bytes,
                             void *all, ddstore_error *err);
/* Waits for what the host program's test tells. */
int ddstore__callback_wait(ddstore_comm *comm, ddstore_error *err);
/* A collective of this comm may be under way for ever. */
void ddstore__callback_give_up(ddstore_comm *comm);
/* free(), but where a collective of this comm was given up: then the host program may
 * still write its buffers, and they are kept for ever. */
void ddstore__callback_free(const ddstore_comm *comm, void *memory);

/* -- comm_how.c -- */

/* DDSTORE_EINVAL: no name for a group, or no time-out. */
int ddstore__comm_check(const char *ns, double timeout_s, ddstore_error *err);
/* As given, else DDSTORE_HANDSHAKE_TIMEOUT_S. */
int64_t ddstore__comm_timeout_ns(double given_s);

/* -- comm.c -- */

int ddstore__comm_enter(ddstore_comm *comm, ddstore_error *err);
int ddstore__comm_leave(ddstore_comm *comm, int rc); /* rc */
int ddstore__comm_may_publish(ddstore_comm *comm, ddstore_error *err);

/* What the file back end asks of its user beside the public arguments: how a holder of
 * the claim on another host can be reached. */
typedef struct ddstore__contact_probe {
    const void *mine; /* opaque bytes for this member's claim */
    size_t bytes;
    /* 1: the member behind those bytes answers; 0: it is certainly gone; -1: can't
     * tell. */
    int (*alive)(const void *theirs, size_t bytes);
} ddstore__contact_probe;

int ddstore__comm_open_file(const ddstore_comm_file *how,
                            const ddstore__contact_probe *probe, ddstore_comm **out,
                            ddstore_error *err);

/* A living or dead group's claim, as an extra member finds it in a directory. */
typedef struct ddstore__claim {
    uint8_t nonce[16]; /* of the holder's run */
    char ns[104], identity[256];
    int size;
    ddstore__process holder;
    uint64_t counter;
    void *contact; /* malloc'd copy of the holder's opaque bytes */
    size_t contact_bytes;
} ddstore__claim;

/* Reads all claims of dir into *out (malloc'd, n of them); free with
 * ddstore__claims_free. A directory that isn't there has none. */
int ddstore__claims_read(const char *dir, ddstore__claim **out, size_t *n,
                         ddstore_error *err);
void ddstore__claims_free(ddstore__claim *claims, size_t n);

#endif

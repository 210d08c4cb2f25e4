/* The row store: what its files share. A store is a list of variables over one group.
 */
#ifndef DDSTORE_STORE_H
#define DDSTORE_STORE_H

#include "ddstore_mpi.h"

#include "engine.h"
#include "layout.h"
#include "record.h"
#include "registry.h"
#include "rendezvous/exchange_dir.h"
#include "rendezvous/rendezvous.h"
#include "run.h"
#include "transport/transport.h"

typedef struct ddstore__counters { /* DDSTORE_PROFILE=1 only */
    atomic_ullong calls, rows, bytes, rows_local, rows_far, mr_miss;
    atomic_ullong mr_ns, read_ns, wait_ns;
} ddstore__counters;

struct ddstore_var {
    _Atomic(ddstore_var *) next; /* of the store, in order of creation; set once */
    ddstore *store;
    char *name, *dtype;
    uint64_t disp, row_bytes;
    uint32_t itemsize;
    int ranks;
    ddstore__layout layout;
    ddstore__access access;    /* how its segments are read */
    ddstore__attachment *part; /* ranks of them */
    ddstore__segment *own;     /* this rank's shard; NULL: an extra member, a reader */
    void *window;              /* method 0: of all shards; NULL: none is needed */
    uint64_t number;           /* in order of creation: the same on all ranks */
    ddstore__counters counters;
};

/* What is known of the others while a collective waits; of the thread that waits. */
typedef struct ddstore__roll {
    int64_t begun_ns; /* the wait that it belongs to */
    int64_t next_ask_ns, next_log_ns, failed_ns;
    int next;            /* the rank to ask */
    bool complete;       /* all were asked */
    bool *absent;        /* by rank */
    ddstore_error fault; /* once failed_ns is set */
} ddstore__roll;

/* Lock order: lock before attach_lock; neither is held while another store's, a peer's
 * or the engine's is taken but by the calls below them. Reads take attach_lock only for
 * the first read of a rank's shard. */
struct ddstore {
    ddstore__settings settings;
    ddstore__engine *engine;
    ddstore_comm *comm; /* NULL: an extra member, a reader, or freed */
    ddstore__run *run;  /* the same */
    bool core, reader;  /* neither: an extra member */
    ddstore__dir *dir;  /* method 2 */
    ddstore__access access;
    ddstore_mpi_calls mpi; /* method 0 */
    bool windows;          /* method 0: some rank can't map another one's memory */
    ddstore__watch watch;
    ddstore__roll roll;
    int method, rank, size, n_core;
    char ns[104];
    unsigned fork_generation;
    atomic_int closed;
    atomic_int torn_down;
    atomic_flag in_collective; /* one thread is */
    ddstore__peer **peer; /* of the core ranks; extras: of the last record joined */
    int n_peers;          /* under lock for extras */
    ddstore__ticket core_ticket; /* extras: of the last run joined; readers */
    char *extra_dir;             /* extras: the directory, which may not be there yet */
    _Atomic(ddstore_var *) vars;
    pthread_mutex_t lock; /* the list of variables, peers of extras, teardown */
    ddstore__registry registry;
    pthread_mutex_t attach_lock; /* settling of attachments */
};

/* All of opening that needs no other member; *out is then closed with ddstore_close,
 * also after failure. */
enum ddstore__kind {
    DDSTORE__CORE,
    DDSTORE__EXTRA,
    DDSTORE__OVER_MPI,
    DDSTORE__READER
};
int ddstore__store_begin(const ddstore_options *o, enum ddstore__kind kind,
                         ddstore **out, ddstore_error *err);

/* Whether the rank's memory can be mapped here (or is this process's own). */
bool ddstore__maps(const ddstore *store, int rank);

/* Tells by log lines how each core rank is read, and why. */
void ddstore__log_paths(const ddstore *store);

/* "an extra member", "a reader (fork_reader)": who can't do what the core can. */
const char *ddstore__who(const ddstore *store);

/* 0, or why the store can't be used: freed, or inherited by a forked child. */
int ddstore__store_usable(const ddstore *store, ddstore_error *err);

/* Gathers one message of every rank of the group, with a status each: the first rank
 * that failed (its code and sentence) fails all. own_failure is nullable. */
typedef struct ddstore__gathered {
    uint8_t *data;
    uint64_t *offset;
} ddstore__gathered;
int ddstore__store_agree(ddstore *store, const ddstore_error *own_failure,
                         const char *what, const void *message, size_t bytes,
                         ddstore__gathered *out, ddstore_error *err);
const uint8_t *ddstore__gathered_at(const ddstore__gathered *g, int rank,
                                    size_t *bytes);
void ddstore__gathered_free(ddstore__gathered *g);

/* absent.c: who keeps a collective of the store waiting. Begins once the peers are
 * known. */
int ddstore__watch_begin(ddstore *store, ddstore_error *err);

/* Freeing the store waits until this thread has left. NULL: *rc and err say why not. */
ddstore__reader *ddstore__collective_enter(ddstore *store, ddstore__call call, int *rc,
                                           ddstore_error *err);
/* rc. After a time-out the store is freed where the others might wait for it. */
int ddstore__collective_leave(ddstore *store, ddstore__reader *reader, int rc);

/* DDSTORE_EFABRIC: that rank uses another provider of libfabric than this process. */
int ddstore__check_provider(const ddstore *store, const ddstore__contact *contact,
                            ddstore_error *err);

/* DDSTORE_EFABRIC: that rank can't be reached from here, whatever is tried. */
int ddstore__check_reach(const ddstore *store, const ddstore__contact *contact,
                         int rank, ddstore_error *err);

/* A variable from what is known of its ranks; not in the store's list yet. */
int ddstore__var_make(ddstore *store, const ddstore__variable_record *record,
                      const ddstore__ticket *ticket, ddstore_var **out,
                      ddstore_error *err);
/* Enters it in the store's list: from then on it is found. */
void ddstore__var_enter(ddstore *store, ddstore_var *var);
void ddstore__var_detach(ddstore_var *var); /* unmaps all; nobody reads it any more */
void ddstore__var_free(ddstore_var *var);

/* alltoall.c: method 0's get_batch. failure is nullable: the caller's own; then var is
 * too. */
int ddstore__alltoall(ddstore *store, ddstore_var *var, ddstore__reader *reader,
                      const int64_t *rows, size_t n, void *dst,
                      const ddstore_error *failure, ddstore_error *err);

/* Method 2, core rank 0: writes the variable's record and offers it on the channel. */
int ddstore__publish(ddstore *store, const ddstore__variable_record *record,
                     ddstore_error *err);
void ddstore__unpublish_all(ddstore *store);

/* Asks the caches for a row that a get is about to read, while that still checks its
 * arguments. Touches no memory that a store which is freed meanwhile would take away.
 */
void ddstore__get_soon(ddstore_var *var, int64_t start);

/* A name as it may be: non-empty, at most 1,024 bytes of UTF-8. */
int ddstore__check_name(const char *name, ddstore_error *err);

#endif

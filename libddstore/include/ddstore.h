/*
 * libddstore: rows of a dataset spread over the memory of many processes, read
 * one-sidedly.
 *
 * Every function returns 0 (or a count) on success and a negative DDSTORE_E... code on
 * failure; the nullable `ddstore_error *` last argument then holds the code and a
 * sentence that says what failed, where, and what to do. The library never exits,
 * aborts or prints.
 *
 * Thread tags: "any thread"; "one thread": one call at a time per store; "collective":
 * every member of the group makes the same call in the same order, from one thread.
 *
 * Ownership: what an open function returns is closed by the close function named there.
 * Closing NULL does nothing. Strings and arrays passed in are only read during the
 * call.
 */
#ifndef DDSTORE_H
#define DDSTORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DDSTORE_API __attribute__((visibility("default")))
#else
#define DDSTORE_API
#endif

/* ---- errors ------------------------------------------------------------------------
 */

enum {
    DDSTORE_OK = 0,
    DDSTORE_EINVAL = -1, /* an argument is wrong (Python: ValueError) */
    DDSTORE_ETYPE = -2,  /* the element type is wrong (TypeError) */
    DDSTORE_EINDEX = -3, /* a row is outside the variable (IndexError) */
    DDSTORE_EKEY = -4,   /* no variable of that name (KeyError) */
    DDSTORE_ENOMEM = -5, /* not enough memory (MemoryError) */
    DDSTORE_ESYS = -6,   /* a system call failed (DDStoreError) */
    DDSTORE_EPEER = -7,  /* a member is lost (PeerLostError) */
    DDSTORE_ECLOSED =
        -8, /* the store was freed, here or by its owner (StoreClosedError) */
    DDSTORE_EFABRIC = -9,    /* no usable network, or it failed (FabricError) */
    DDSTORE_ETIMEDOUT = -10, /* members did not meet in time (HandshakeTimeout) */
    DDSTORE_EINTR = -11, /* the host program asked to stop (ddstore_set_interrupt) */
    DDSTORE_ECONFLICT =
        -12, /* another group holds the directory or the name (DDStoreError) */
    DDSTORE_EUNSUPPORTED = -13, /* this build or machine can't (RuntimeError) */
    DDSTORE_EFORKED =
        -14 /* an inherited object was used in a forked child (DDStoreError) */
};

typedef struct ddstore_error {
    int code;
    int late; /* of a read: 1 if bytes may still arrive in dst, which must stay
                 allocated as long as the process runs; else 0 */
    char message[2048];
} ddstore_error;

/* The name of a code, e.g. "DDSTORE_EPEER". Any thread. */
DDSTORE_API const char *ddstore_code_name(int code);

/* The library's version, "MAJOR.MINOR.PATCH". Any thread. */
DDSTORE_API const char *ddstore_version(void);

/* ---- log ---------------------------------------------------------------------------
 */

enum {
    DDSTORE_LOG_DEBUG = 10,
    DDSTORE_LOG_INFO = 20,
    DDSTORE_LOG_WARN = 30,
    DDSTORE_LOG_ERROR = 40
};

typedef void ddstore_log_fn(void *arg, int level, const char *message);

/* Takes all log lines at or above `level`; fn NULL: none (the default). The library's
 * own thread never calls fn: its lines are passed on by the next call of any other
 * thread, or by ddstore_log_drain. Any thread; fn must be callable from any thread. */
DDSTORE_API void ddstore_set_logger(ddstore_log_fn *fn, void *arg, int level);

/* Waits up to timeout_ms for lines of the library's own thread and passes them on.
 * Returns how many. Any thread. */
DDSTORE_API int ddstore_log_drain(int timeout_ms);

/* Called at least every 100 ms from threads that wait inside the library, and after
 * each signal; a non-zero return ends the wait with DDSTORE_EINTR. NULL: none. Any
 * thread. */
DDSTORE_API void ddstore_set_interrupt(int (*fn)(void *arg), void *arg);

/* ---- settings ----------------------------------------------------------------------
 */

/* One setting given by the caller; it wins over the environment. */
typedef struct ddstore_setting {
    const char *name; /* e.g. "DDSTORE_READ_TIMEOUT_S" */
    const char *value;
} ddstore_setting;

typedef struct ddstore_setting_info {
    const char *name, *kind, *fallback, *allowed, *help;
    char value[512];    /* as it is in effect now */
    const char *origin; /* "default" or "environment" */
    int bad; /* 1: the environment's value is refused, `value` holds the reason */
} ddstore_setting_info;

/* Describes setting number i (0, 1, ...); DDSTORE_EINDEX past the last. Any thread. */
DDSTORE_API int ddstore_setting_describe(size_t i, ddstore_setting_info *out);

/* ---- meeting: how the members of a group find each other ----------------------------
 */

typedef struct ddstore_comm ddstore_comm;

/* A group of one. Close with ddstore_comm_close. */
DDSTORE_API int ddstore_comm_open_self(ddstore_comm **out, ddstore_error *err);

typedef struct ddstore_comm_file {
    const char *dir; /* shared directory; made with mode 0700 if its parent exists */
    const char *ns;  /* names this group's files; no '.', NUL or '/', 1 to 100 bytes */
    int rank, size;
    double timeout_s; /* of every call; 0: DDSTORE_HANDSHAKE_TIMEOUT_S */
} ddstore_comm_file;

/* Members meet through files of a shared directory. Collective. Close with
 * ddstore_comm_close, which is local. */
DDSTORE_API int ddstore_comm_open_file(const ddstore_comm_file *how, ddstore_comm **out,
                                       ddstore_error *err);

typedef struct ddstore_comm_pmi2 {
    const char *ns;   /* names the group, as above */
    double timeout_s; /* of every call; 0: DDSTORE_HANDSHAKE_TIMEOUT_S */
} ddstore_comm_pmi2;

/* The tasks of a Slurm step meet through their launcher (srun --mpi=pmi2), without
 * files. libpmi2 is loaded at run time. Exchanges, also those of different groups, come
 * in the same order on all ranks. Waits for no other rank. DDSTORE_EUNSUPPORTED: this
 * process has no PMI2, and err says why. Close with ddstore_comm_close. */
DDSTORE_API int ddstore_comm_open_pmi2(const ddstore_comm_pmi2 *how, ddstore_comm **out,
                                       ddstore_error *err);

/* A host program's own collective. `allgather` gathers `bytes` bytes, the same number
 * on every rank, into `all` (size * bytes, in rank order) and returns 0; non-zero is a
 * failure. With `test` (nullable) it only starts: test returns 1 once all bytes are
 * there, 0 before, a negative number on failure; then the wait is the library's, with
 * its deadline, and the buffers stay until then. `why` (nullable) says in words what
 * failed last. `close` (nullable) is called once, by ddstore_comm_close. */
typedef struct ddstore_comm_callbacks {
    int rank, size;
    double timeout_s; /* of every call, with test; 0: DDSTORE_HANDSHAKE_TIMEOUT_S */
    int (*allgather)(void *arg, const void *mine, size_t bytes, void *all);
    int (*test)(void *arg);
    void (*why)(void *arg, char *text, size_t bytes);
    void (*close)(void *arg);
    void *arg;
} ddstore_comm_callbacks;

DDSTORE_API int ddstore_comm_open_callbacks(const ddstore_comm_callbacks *how,
                                            ddstore_comm **out, ddstore_error *err);

DDSTORE_API int ddstore_comm_rank(const ddstore_comm *comm);
DDSTORE_API int ddstore_comm_size(const ddstore_comm *comm);

/* Gathers every rank's bytes, in rank order: *data holds them all, back to back, and
 * offsets[0..size] where each begins (offsets: size + 1 entries of the caller's). *data
 * is released with ddstore_release. Collective. */
DDSTORE_API int ddstore_comm_allgatherv(ddstore_comm *comm, const void *mine,
                                        size_t bytes, void **data, uint64_t *offsets,
                                        ddstore_error *err);

/* Returns when every member has called it. Collective. */
DDSTORE_API int ddstore_comm_barrier(ddstore_comm *comm, ddstore_error *err);

/* Ends waits of other threads in this comm with DDSTORE_ECLOSED; later calls too. Any
 * thread. */
DDSTORE_API void ddstore_comm_wake(ddstore_comm *comm);

DDSTORE_API void ddstore_comm_close(ddstore_comm *comm);

/* Releases memory that a ddstore function returned. Any thread. */
DDSTORE_API void ddstore_release(void *data);

/* ---- store: rows across ranks
 * -------------------------------------------------------- */

typedef struct ddstore ddstore; /* one store of one member */
typedef struct ddstore_var
    ddstore_var; /* one variable of it; lives as long as the store */

typedef struct ddstore_options {
    size_t struct_bytes;       /* sizeof(ddstore_options) */
    int method;                /* 0: rows by MPI (ddstore_mpi.h); 1: rows; 2: rows,
                                  published for extra members */
    const char *handshake_dir; /* method 2: where records are published */
    const char *exchange_ns;   /* method 2: the group's name in that directory */
    int n_core;                /* extra members: core ranks, 0: as the record says */
    const ddstore_setting *settings; /* win over the environment */
    size_t n_settings;
} ddstore_options;

/* Opens a store over comm, which the store takes over, also on failure. Collective.
 * Close with ddstore_close. */
DDSTORE_API int ddstore_open(ddstore_comm *comm, const ddstore_options *options,
                             ddstore **out, ddstore_error *err);

/* Takes part in the others' opening of a store with a failure of the caller's own, so
 * that it fails on every rank and names this one. Takes over comm. Returns why->code.
 * Collective. */
DDSTORE_API int ddstore_open_failed(ddstore_comm *comm, const ddstore_error *why,
                                    ddstore_error *err);

/* Opens a store over the files of a directory: ddstore_comm_open_file and ddstore_open
 * in one, with the claim of rank 0 reachable over the network. Collective. */
DDSTORE_API int ddstore_open_file(const ddstore_comm_file *how,
                                  const ddstore_options *options, ddstore **out,
                                  ddstore_error *err);

/* Opens the store of an extra member (method 2), which reads what a core group
 * publishes in options->handshake_dir. Local: waits for nobody. Close with
 * ddstore_close. */
DDSTORE_API int ddstore_open_extra(const ddstore_options *options, ddstore **out,
                                   ddstore_error *err);

/* ---- readers: the same variables for another process or thread ---- */

/* Describes the store and the variables that it has now as bytes, from which
 * ddstore_open_reader opens a reader of them, here or in any process that reaches the
 * members. They hold the run's secret: show them to nobody who may not read the rows.
 * Takes no lock, so it works with an inherited store in a forked child. *data is
 * released with ddstore_release. DDSTORE_EUNSUPPORTED: method 0. Any thread. */
DDSTORE_API int ddstore_describe(const ddstore *store, void **data, size_t *bytes,
                                 ddstore_error *err);

/* Opens a reader: a read-only store with mappings and connections of its own. It has
 * the variables that were described, none that are added later; its rank and size are
 * the described store's; add, update, view and join are refused. settings win over the
 * environment, as the store had them. Local: waits for nobody. DDSTORE_EINVAL: the
 * bytes are damaged; DDSTORE_EFABRIC: a forked child of a process that uses cxi without
 * DDSTORE_FORK_WORKERS=1. Close with ddstore_close. Any thread. */
DDSTORE_API int ddstore_open_reader(const void *data, size_t bytes,
                                    const ddstore_setting *settings, size_t n_settings,
                                    ddstore **out, ddstore_error *err);

/* Local: new calls fail with DDSTORE_ECLOSED, waits end, running reads are waited for
 * (up to the read deadline), extra members are told. Twice does nothing. Any thread. */
DDSTORE_API void ddstore_free(ddstore *store);

/* ddstore_free, and the handle itself. No other thread may use the store any more. */
DDSTORE_API void ddstore_close(ddstore *store);

/* From now on SIGTERM first tells all readers that this process's stores are closing;
 * then the process ends by it as before. Does nothing where the program handles the
 * signal itself (then it calls ddstore_free). Any thread. */
DDSTORE_API void ddstore_announce_sigterm(void);

DDSTORE_API int ddstore_rank(const ddstore *store); /* -1: an extra member */
DDSTORE_API int ddstore_size(const ddstore *store); /* core ranks; 0: not known yet */

/* This rank's part of a new variable. */
typedef struct ddstore_shard {
    int64_t rows;
    uint64_t disp;     /* elements a row; ignored where rows is 0 */
    uint32_t itemsize; /* bytes an element; ignored where rows is 0 */
    const char *dtype; /* compared as text over all ranks; "" or NULL: untyped bytes */
    const void *data;  /* rows * disp * itemsize bytes, copied; NULL: zeros */
} ddstore_shard;

/* Adds a variable whose rows are the shards of all ranks, in rank order. Collective. */
DDSTORE_API int ddstore_add(ddstore *store, const char *name,
                            const ddstore_shard *shard, ddstore_var **out,
                            ddstore_error *err);

/* Takes part in the others' ddstore_add with a failure of the caller's own, so that it
 * fails on every rank and names this one. Returns why->code. Collective. */
DDSTORE_API int ddstore_add_failed(ddstore *store, const char *name,
                                   const ddstore_error *why, ddstore_error *err);

/* Extra members: waits up to DDSTORE_HANDSHAKE_TIMEOUT_S until a living core group
 * publishes the variable. Joining again takes a new run's record. One thread. */
DDSTORE_API int ddstore_join(ddstore *store, const char *name, ddstore_var **out,
                             ddstore_error *err);

/* The variable of that name, or NULL. Any thread. */
DDSTORE_API ddstore_var *ddstore_find(ddstore *store, const char *name);

typedef struct ddstore_var_info {
    const char *name, *dtype;
    int64_t total_rows, local_rows, local_start;
    uint64_t disp, row_bytes;
    uint32_t itemsize;
} ddstore_var_info;

DDSTORE_API int ddstore_info(const ddstore_var *var, ddstore_var_info *out);

/* Variable number i in order of creation; NULL past the last. Any thread. */
DDSTORE_API ddstore_var *ddstore_var_at(ddstore *store, size_t i);

/* Overwrites `rows` rows of this rank's shard from row_offset (in the shard) on. Local.
 * A read that runs beside it may see a mix of old and new bytes. One thread. */
DDSTORE_API int ddstore_update(ddstore_var *var, const void *data, int64_t rows,
                               int64_t row_offset, ddstore_error *err);

/* Reads `rows` consecutive rows from global row `start` into dst. They lie in one
 * shard. Any thread. After DDSTORE_EPEER or DDSTORE_EINTR the contents of dst are
 * undefined; if err->late, dst must stay allocated. */
DDSTORE_API int ddstore_get(ddstore_var *var, int64_t start, int64_t rows, void *dst,
                            ddstore_error *err);

/* Reads row rows[i] into dst + i * row_bytes, i = 0 .. n-1; any order, repeats allowed.
 * All indices are checked before the first byte is read. Any thread; with method 0
 * collective: every rank calls it as often, from one thread, with as many rows as it
 * likes, and a failure on one rank fails all. */
DDSTORE_API int ddstore_get_batch(ddstore_var *var, const int64_t *rows, size_t n,
                                  void *dst, ddstore_error *err);

/* Reads n runs of rows, back to back into dst: each `rows` rows (0 too) from global row
 * `row` on, also across shards; any order, overlaps allowed. Otherwise, and among the
 * ranks of method 0, as ddstore_get_batch of all those rows. */
typedef struct ddstore_run {
    int64_t row, rows;
} ddstore_run;

DDSTORE_API int ddstore_get_runs(ddstore_var *var, const ddstore_run *runs, size_t n,
                                 void *dst, ddstore_error *err);

/* Method 0: takes part in the others' ddstore_get_batch with a failure of the caller's
 * own. Returns why->code. Collective. */
DDSTORE_API int ddstore_get_batch_failed(ddstore *store, const ddstore_error *why,
                                         ddstore_error *err);

/* Method 0: waits for every rank; reads that begin afterwards see what each rank wrote
 * before. Methods 1 and 2: nothing. Collective. */
DDSTORE_API int ddstore_epoch(ddstore *store, ddstore_error *err);

/* Method 0, before ddstore_free: waits until every rank is here, so that none reads any
 * more. A rank that is in another collective call instead gets DDSTORE_ECLOSED there,
 * and this one an error. Methods 1 and 2: nothing. Collective. */
DDSTORE_API int ddstore_meet_to_free(ddstore *store, ddstore_error *err);

/* This rank's own shard, in place; it stays mapped until ddstore_view_close, also after
 * ddstore_free. Any thread. */
typedef struct ddstore_view ddstore_view;
DDSTORE_API int ddstore_view_open(ddstore_var *var, void **data, uint64_t *bytes,
                                  ddstore_view **out, ddstore_error *err);
DDSTORE_API void ddstore_view_close(ddstore_view *view);

/* Keeps a destination registered with the network until it is unregistered or the store
 * is freed; registering the same range again does nothing. Unregistering an unknown
 * range: DDSTORE_EINVAL. The caller keeps the memory alive meanwhile. Method 0:
 * nothing. Any thread. */
DDSTORE_API int ddstore_register_recv(ddstore *store, void *data, uint64_t bytes,
                                      ddstore_error *err);
DDSTORE_API int ddstore_unregister_recv(ddstore *store, void *data, uint64_t bytes,
                                        ddstore_error *err);

/* Of get and get_batch of one variable; zero unless DDSTORE_PROFILE=1. Times in
 * seconds. */
typedef struct ddstore_profile {
    uint64_t calls, rows, bytes, rows_local, rows_rdma, rows_tcp, rows_mpi, mr_miss;
    double lock_wait, mr, read, cq;
} ddstore_profile;

DDSTORE_API int ddstore_get_profile(ddstore_var *var, ddstore_profile *out);

/* How one peer is reached, and why. */
typedef struct ddstore_peer_info {
    int rank;
    int64_t pid;
    char host[64], path[16], provider[64], reason[256], state[16];
} ddstore_peer_info;

/* Core rank number i; DDSTORE_EINDEX past the last; DDSTORE_EFORKED: an inherited
 * store. Any thread. */
DDSTORE_API int ddstore_peer_at(ddstore *store, int i, ddstore_peer_info *out);

/* Extra members and readers: *alive tells whether the core group still serves. Any
 * thread. */
DDSTORE_API int ddstore_core_alive(ddstore *store, int *alive, ddstore_error *err);

/* ---- nic map: which network interface is nearest to which CPU ----------------------
 */

/* A map from CPUs, by the kernel's numbers, to network interfaces (NICs). It doesn't
 * change once it is made: any number of threads may look at one. Its text form, that of
 * DDSTORE_NIC_MAP, is NAME=CPUS;NAME=CPUS, e.g. hsn0=0-15,64-79;hsn1=16-31. Up to 64
 * NICs, CPUs 0 to 8191. Close with ddstore_nic_map_close. */
typedef struct ddstore_nic_map ddstore_nic_map;

/* The map of this machine, by hwloc, which is loaded for it; CPUs that this process may
 * not use are in it too. pattern: shell patterns of the NICs' names, separated by
 * commas; NULL or "": hsn*,ib*,en*,eth*. Only NICs that are PCI devices are taken. A
 * CPU gets a NIC whose place contains it, else one at its package, else the one with
 * the least distance; CPUs for which several are equally near are spread over them
 * evenly. Every CPU stands under one NIC. HWLOC_XMLFILE names another machine's
 * description. DDSTORE_EUNSUPPORTED: this build or machine has no hwloc;
 * DDSTORE_EFABRIC: there is no such NIC; DDSTORE_ESYS: hwloc failed, or the file is no
 * description. Any thread.
 */
DDSTORE_API int ddstore_nic_map_discover(const char *pattern, ddstore_nic_map **out,
                                         ddstore_error *err);

/* The map that a text describes. A NIC is named once; a CPU may stand under several.
 * DDSTORE_EINVAL tells the place where the text is wrong. Any thread. */
DDSTORE_API int ddstore_nic_map_parse(const char *text, ddstore_nic_map **out,
                                      ddstore_error *err);

/* The text of a map: NICs that no CPU stands under are left out. *text is released with
 * ddstore_release. Any thread. */
DDSTORE_API int ddstore_nic_map_format(const ddstore_nic_map *map, char **text,
                                       ddstore_error *err);

typedef struct ddstore_nic_choice {
    char nic[16];
    int near; /* 0: no CPU of the caller is in the map, so the NICs take turns */
    char why[128];
} ddstore_nic_choice;

/* The NIC for the CPUs that the calling thread may use; where they have several, the
 * process's local rank, as its launcher tells it, says which. If no CPU is in the map,
 * the local rank chooses among all NICs, and a warning is logged. Any thread. */
DDSTORE_API int ddstore_nic_map_choose(const ddstore_nic_map *map,
                                       ddstore_nic_choice *out, ddstore_error *err);

typedef struct ddstore_nic_cpu {
    int numa;     /* NUMA node of the CPU; -1: not known (the map is from a text) */
    int nic_numa; /* of the NIC; -1: not known, or several */
    char nic[16]; /* the first that the CPU stands under */
    char how[16]; /* "exact", "package", "distance", "anywhere" (nobody knows where the
                     NIC is); "given": by a text */
} ddstore_nic_cpu;

/* What the map says of a CPU. DDSTORE_EKEY: it isn't in the map; DDSTORE_EINDEX: nor is
 * any beyond it. So 0, 1, ... up to DDSTORE_EINDEX are all. Any thread. */
DDSTORE_API int ddstore_nic_map_cpu(const ddstore_nic_map *map, int cpu,
                                    ddstore_nic_cpu *out);

DDSTORE_API void ddstore_nic_map_close(ddstore_nic_map *map);

/* ---- this machine, for tools
 * ---------------------------------------------------------- */

/* Writes what the library sees of this machine as lines "KEY\tVALUE" (interfaces,
 * libfabric and its providers, limits) to *text, released with ddstore_release. Any
 * thread. */
DDSTORE_API int ddstore_probe(char **text, ddstore_error *err);

#ifdef __cplusplus
}
#endif
#endif

# The C API that the extension uses; what each function does stands in ddstore.h.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "ddstore.h" nogil:
    enum:
        DDSTORE_OK
        DDSTORE_EINVAL
        DDSTORE_ETYPE
        DDSTORE_EINDEX
        DDSTORE_EKEY
        DDSTORE_ENOMEM
        DDSTORE_ESYS
        DDSTORE_EPEER
        DDSTORE_ECLOSED
        DDSTORE_EFABRIC
        DDSTORE_ETIMEDOUT
        DDSTORE_EINTR
        DDSTORE_ECONFLICT
        DDSTORE_EUNSUPPORTED
        DDSTORE_EFORKED

    ctypedef struct ddstore_error:
        int code
        int late
        char message[2048]

    const char *ddstore_code_name(int code)
    const char *ddstore_version()

    ctypedef void (*ddstore_log_fn)(void *arg, int level, const char *message) noexcept
    void ddstore_set_logger(ddstore_log_fn fn, void *arg, int level)
    int ddstore_log_drain(int timeout_ms)
    void ddstore_set_interrupt(int (*fn)(void *arg) noexcept, void *arg)

    ctypedef struct ddstore_setting:
        const char *name
        const char *value

    ctypedef struct ddstore_setting_info:
        const char *name
        const char *kind
        const char *fallback
        const char *allowed
        const char *help
        char value[512]
        const char *origin
        int bad

    int ddstore_setting_describe(size_t i, ddstore_setting_info *out)

    ctypedef struct ddstore_comm:
        pass

    ctypedef struct ddstore_comm_file:
        const char *dir
        const char *ns
        int rank
        int size
        double timeout_s

    int ddstore_comm_open_file(const ddstore_comm_file *how, ddstore_comm **out,
                               ddstore_error *err)

    ctypedef struct ddstore_comm_pmi2:
        const char *ns
        double timeout_s

    int ddstore_comm_open_pmi2(const ddstore_comm_pmi2 *how, ddstore_comm **out,
                               ddstore_error *err) nogil
    int ddstore_comm_rank(const ddstore_comm *comm) nogil
    int ddstore_comm_size(const ddstore_comm *comm) nogil

    ctypedef struct ddstore_comm_callbacks:
        int rank
        int size
        double timeout_s
        int (*allgather)(void *arg, const void *mine, size_t nbytes, void *all) noexcept nogil
        int (*test)(void *arg) noexcept nogil
        void (*why)(void *arg, char *text, size_t nbytes) noexcept nogil
        void (*close)(void *arg) noexcept nogil
        void *arg

    int ddstore_comm_open_callbacks(const ddstore_comm_callbacks *how, ddstore_comm **out,
                                    ddstore_error *err)
    int ddstore_comm_allgatherv(ddstore_comm *comm, const void *mine, size_t nbytes,
                                void **data, uint64_t *offsets, ddstore_error *err)
    int ddstore_comm_barrier(ddstore_comm *comm, ddstore_error *err)
    void ddstore_comm_wake(ddstore_comm *comm)
    void ddstore_comm_close(ddstore_comm *comm)
    void ddstore_release(void *data)

    ctypedef struct ddstore_t "ddstore":
        pass
    ctypedef struct ddstore_var:
        pass

    ctypedef struct ddstore_options:
        size_t struct_bytes
        int method
        const char *handshake_dir
        const char *exchange_ns
        int n_core
        const ddstore_setting *settings
        size_t n_settings

    int ddstore_open(ddstore_comm *comm, const ddstore_options *options, ddstore_t **out,
                     ddstore_error *err)
    int ddstore_open_failed(ddstore_comm *comm, const ddstore_error *why,
                            ddstore_error *err)
    int ddstore_open_file(const ddstore_comm_file *how, const ddstore_options *options,
                          ddstore_t **out, ddstore_error *err)
    int ddstore_open_extra(const ddstore_options *options, ddstore_t **out,
                           ddstore_error *err)
    int ddstore_describe(const ddstore_t *store, void **data, size_t *nbytes,
                         ddstore_error *err)
    int ddstore_open_reader(const void *data, size_t nbytes,
                            const ddstore_setting *settings, size_t n_settings,
                            ddstore_t **out, ddstore_error *err)
    void ddstore_free(ddstore_t *store)
    void ddstore_close(ddstore_t *store)
    void ddstore_announce_sigterm()
    int ddstore_rank(const ddstore_t *store)
    int ddstore_size(const ddstore_t *store)

    ctypedef struct ddstore_shard:
        int64_t rows
        uint64_t disp
        uint32_t itemsize
        const char *dtype
        const void *data

    int ddstore_add(ddstore_t *store, const char *name, const ddstore_shard *shard,
                    ddstore_var **out, ddstore_error *err)
    int ddstore_add_failed(ddstore_t *store, const char *name, const ddstore_error *why,
                           ddstore_error *err)
    int ddstore_join(ddstore_t *store, const char *name, ddstore_var **out,
                     ddstore_error *err)

    ddstore_var *ddstore_var_at(ddstore_t *store, size_t i)

    ctypedef struct ddstore_var_info:
        const char *name
        const char *dtype
        int64_t total_rows
        int64_t local_rows
        int64_t local_start
        uint64_t disp
        uint64_t row_bytes
        uint32_t itemsize

    int ddstore_info(const ddstore_var *var, ddstore_var_info *out)
    int ddstore_update(ddstore_var *var, const void *data, int64_t rows, int64_t row_offset,
                       ddstore_error *err)
    int ddstore_get(ddstore_var *var, int64_t start, int64_t rows, void *dst,
                    ddstore_error *err)
    int ddstore_get_batch(ddstore_var *var, const int64_t *rows, size_t n, void *dst,
                          ddstore_error *err)

    ctypedef struct ddstore_run:
        int64_t row, rows

    int ddstore_get_runs(ddstore_var *var, const ddstore_run *runs, size_t n, void *dst,
                         ddstore_error *err)
    int ddstore_get_batch_failed(ddstore_t *store, const ddstore_error *why,
                                 ddstore_error *err)
    int ddstore_epoch(ddstore_t *store, ddstore_error *err)
    int ddstore_meet_to_free(ddstore_t *store, ddstore_error *err)

    ctypedef struct ddstore_view:
        pass
    int ddstore_view_open(ddstore_var *var, void **data, uint64_t *nbytes,
                          ddstore_view **out, ddstore_error *err)
    void ddstore_view_close(ddstore_view *view)

    int ddstore_register_recv(ddstore_t *store, void *data, uint64_t nbytes,
                              ddstore_error *err)
    int ddstore_unregister_recv(ddstore_t *store, void *data, uint64_t nbytes,
                                ddstore_error *err)

    ctypedef struct ddstore_profile:
        uint64_t calls
        uint64_t rows
        uint64_t bytes "bytes"
        uint64_t rows_local
        uint64_t rows_rdma
        uint64_t rows_tcp
        uint64_t rows_mpi
        uint64_t mr_miss
        double lock_wait
        double mr
        double read
        double cq

    int ddstore_get_profile(ddstore_var *var, ddstore_profile *out)

    ctypedef struct ddstore_peer_info:
        int rank
        int64_t pid
        char host[64]
        char path[16]
        char provider[64]
        char reason[256]
        char state[16]

    int ddstore_peer_at(ddstore_t *store, int i, ddstore_peer_info *out)
    int ddstore_core_alive(ddstore_t *store, int *alive, ddstore_error *err)
    int ddstore_probe(char **text, ddstore_error *err)

    ctypedef struct ddstore_nic_map:
        pass

    ctypedef struct ddstore_nic_choice:
        char nic[16]
        int near
        char why[128]

    ctypedef struct ddstore_nic_cpu:
        int numa
        int nic_numa
        char nic[16]
        char how[16]

    int ddstore_nic_map_discover(const char *pattern, ddstore_nic_map **out,
                                 ddstore_error *err)
    int ddstore_nic_map_parse(const char *text, ddstore_nic_map **out, ddstore_error *err)
    int ddstore_nic_map_format(const ddstore_nic_map *map, char **text,
                               ddstore_error *err)
    int ddstore_nic_map_choose(const ddstore_nic_map *map, ddstore_nic_choice *out,
                               ddstore_error *err)
    int ddstore_nic_map_cpu(const ddstore_nic_map *map, int cpu, ddstore_nic_cpu *out)
    void ddstore_nic_map_close(ddstore_nic_map *map)


cdef extern from "ddstore_mpi.h" nogil:
    ctypedef struct ddstore_mpi:
        pass
    ctypedef struct ddstore_mpi_calls:
        ddstore_comm_callbacks comm

    int ddstore_open_mpi_calls(const ddstore_mpi_calls *calls,
                               const ddstore_options *options, ddstore_t **out,
                               ddstore_error *err)

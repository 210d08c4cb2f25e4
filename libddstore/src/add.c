/* Adding a variable: the ranks agree on its shape, each commits and fills its shard,
 * and all learn where the others' shards are. Every rank enters every step, also one
 * whose own part failed, so that all fail alike. */
#include "store.h"

#include "memory.h"

#include <stdio.h>
#include <stdlib.h>

/* Each rank's part of the first exchange. */
typedef struct spec {
    int64_t rows;
    uint64_t disp;
    uint32_t itemsize;
    const uint8_t *boot_id;
    const char *name, *dtype; /* not terminated */
    uint16_t name_bytes, dtype_bytes;
} spec;

static void encode_spec(const ddstore *store, const char *name,
                        const ddstore_shard *shard, ddstore__buffer *b)
{
    const char *dtype = shard->dtype ? shard->dtype : "";
    ddstore__add64(b, (uint64_t)shard->rows);
    ddstore__add64(b, shard->disp);
    ddstore__add32(b, shard->itemsize);
    ddstore__add_bytes(b, store->engine->self.process.boot_id, 16);
    ddstore__add16(b, (uint16_t)strlen(name));
    ddstore__add16(b, (uint16_t)strlen(dtype));
    ddstore__add_bytes(b, name, strlen(name));
    ddstore__add_bytes(b, dtype, strlen(dtype));
}

static bool decode_spec(const ddstore__gathered *g, int rank, spec *out)
{
    size_t bytes;
    ddstore__cursor c = {.at = ddstore__gathered_at(g, rank, &bytes)};
    c.end = c.at + bytes;
    out->rows = (int64_t)ddstore__take64(&c);
    out->disp = ddstore__take64(&c);
    out->itemsize = ddstore__take32(&c);
    out->boot_id = ddstore__take(&c, 16);
    out->name_bytes = ddstore__take16(&c);
    out->dtype_bytes = ddstore__take16(&c);
    out->name = (const char *)ddstore__take(&c, out->name_bytes);
    out->dtype = (const char *)ddstore__take(&c, out->dtype_bytes);
    return !c.bad;
}

static int check_shard(ddstore *store, const char *name, const ddstore_shard *shard,
                       ddstore_error *err)
{
    uint64_t row_bytes, bytes;
    int rc = ddstore__check_name(name, err);
    if (rc)
        return rc;
    if (ddstore_find(store, name))
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s exists already", name);
    if (shard->rows < 0)
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s: %lld rows", name,
                             (long long)shard->rows);
    if (shard->rows && shard->itemsize == 0 && !(shard->dtype && *shard->dtype))
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s: itemsize is 0", name);
    if (__builtin_mul_overflow(shard->disp, (uint64_t)shard->itemsize, &row_bytes) ||
        __builtin_mul_overflow((uint64_t)shard->rows, row_bytes, &bytes) ||
        bytes > (1ULL << 61))
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s is too large", name);
    if (shard->dtype && strlen(shard->dtype) > UINT16_MAX)
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s: its dtype is too long",
                             name);
    return DDSTORE_OK;
}

/* Rank r against the first that has rows; ranks without rows agree with anything. */
static int check_spec(const char *name, const spec *first, int first_rank,
                      const spec *s, int r, const spec *zero, ddstore_error *err)
{
    if (s->name_bytes != zero->name_bytes ||
        memcmp(s->name, zero->name, s->name_bytes) != 0)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "rank %d adds variable %.*s and rank 0 %.*s", r,
                             s->name_bytes, s->name, zero->name_bytes, zero->name);
    if (!s->rows)
        return DDSTORE_OK;
    if (s->dtype_bytes != first->dtype_bytes ||
        memcmp(s->dtype, first->dtype, s->dtype_bytes) != 0)
        return ddstore__fail(
            err, DDSTORE_ETYPE,
            "variable %s has dtype %.*s on rank %d and %.*s on rank %d", name,
            s->dtype_bytes, s->dtype, r, first->dtype_bytes, first->dtype, first_rank);
    if (s->disp != first->disp || s->itemsize != first->itemsize)
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "variable %s has rows of %llu elements of %u bytes on rank %d "
            "and of %llu of %u on rank %d",
            name, (unsigned long long)s->disp, s->itemsize, r,
            (unsigned long long)first->disp, first->itemsize, first_rank);
    return DDSTORE_OK;
}

/* The variable that all agreed on. */
static int agree_spec(const ddstore *store, const char *name,
                      const ddstore__gathered *g, ddstore__variable_record *record,
                      ddstore_error *err)
{
    spec zero, first, s;
    int first_rank = 0;
    if (!decode_spec(g, 0, &zero))
        return ddstore__fail(err, DDSTORE_ECONFLICT, "rank 0 runs another version");
    first = zero;
    for (int r = store->size; r-- > 0;)
        if (decode_spec(g, r, &s) && s.rows)
            first = s, first_rank = r;
    for (int r = 0; r < store->size; r++) {
        int rc = decode_spec(g, r, &s)
                     ? check_spec(name, &first, first_rank, &s, r, &zero, err)
                     : ddstore__fail(err, DDSTORE_ECONFLICT,
                                     "rank %d runs another version", r);
        if (rc)
            return rc;
        record->rank[r].rows = s.rows;
    }
    record->disp = first.disp;
    record->itemsize = first.itemsize;
    record->dtype = ddstore__copy_text(first.dtype, first.dtype_bytes);
    record->name = strdup(name);
    if (!record->dtype || !record->name)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for variable %s", name);
    return DDSTORE_OK;
}

static uint64_t need_of_host(const ddstore *store, const ddstore__gathered *g)
{
    uint64_t here = 0;
    spec s;
    for (int r = 0; r < store->size; r++)
        if (decode_spec(g, r, &s) &&
            memcmp(s.boot_id, store->engine->self.process.boot_id, 16) == 0)
            here += (uint64_t)s.rows * s.disp * s.itemsize;
    return here;
}

/* This rank's shard: committed, filled and exposed. */
static int make_shard(ddstore *store, const ddstore__variable_record *record,
                      const ddstore_shard *shard, uint64_t host_need,
                      ddstore__segment **out, ddstore_error *err)
{
    char what[160];
    snprintf(what, sizeof(what), "variable %.100s (all ranks of this host)",
             record->name);
    int rc = ddstore__memory_check(host_need, what, err);
    if (rc)
        return rc;
    uint64_t bytes = (uint64_t)shard->rows * record->disp * record->itemsize;
    snprintf(what, sizeof(what), "variable %.100s", record->name);
    rc = ddstore__segment_create(store->access.ticket.run, bytes, what, out, err);
    if (rc)
        return rc;
    if (shard->data && bytes)
        memcpy(ddstore__segment_data(*out), shard->data, bytes);
    return ddstore__segment_expose(*out, store->access.ofi, err);
}

/* The second exchange: where each rank's shard is. */
static int tell_shards(ddstore *store, const char *what, ddstore__segment *own,
                       const ddstore_error *failure, ddstore__variable_record *record,
                       ddstore_error *err)
{
    ddstore__gathered g;
    ddstore__descriptor at = {0};
    uint8_t wire[DDSTORE__DESCRIPTOR_BYTES];
    if (own)
        ddstore__segment_describe(own, store->engine->self.uid, &at);
    ddstore__descriptor_encode(&at, wire);
    int rc = ddstore__store_agree(store, failure, what, wire, sizeof(wire), &g, err);
    for (int r = 0; !rc && r < store->size; r++) {
        size_t bytes;
        const uint8_t *p = ddstore__gathered_at(&g, r, &bytes);
        record->rank[r].contact = store->peer[r]->contact;
        if (!ddstore__descriptor_decode(p, bytes, &record->rank[r].at))
            rc = ddstore__fail(err, DDSTORE_ECONFLICT, "rank %d runs another version",
                               r);
    }
    ddstore__gathered_free(&g);
    return rc;
}

/* Method 2: rank 0 publishes, and all learn whether it could. */
static int tell_published(ddstore *store, const char *what,
                          const ddstore__variable_record *record, ddstore_error *err)
{
    ddstore__gathered g;
    ddstore_error mine;
    if (store->method != 2)
        return DDSTORE_OK;
    int rc = store->rank == 0 ? ddstore__publish(store, record, &mine) : DDSTORE_OK;
    rc = ddstore__store_agree(store, rc ? &mine : NULL, what, NULL, 0, &g, err);
    ddstore__gathered_free(&g);
    return rc;
}

/* Before a window: whether all have a variable for it. */
static int make_var(ddstore *store, const char *what,
                    const ddstore__variable_record *record, ddstore_var **var,
                    ddstore_error *err)
{
    ddstore__gathered g;
    ddstore_error mine;
    int rc = ddstore__var_make(store, record, &store->access.ticket, var,
                               store->windows ? &mine : err);
    if (!store->windows)
        return rc;
    rc = ddstore__store_agree(store, rc ? &mine : NULL, what, NULL, 0, &g, err);
    ddstore__gathered_free(&g);
    return rc;
}

static void drop_segment(void *seg)
{
    ddstore__segment_unref(seg);
}

/* Method 0: all expose their shards to MPI, or none. */
static int open_window(ddstore *store, const char *what, ddstore__segment *own,
                       ddstore_var *var, ddstore_error *err)
{
    ddstore__gathered g;
    ddstore_error mine;
    const ddstore_mpi_calls *mpi = &store->mpi;
    if (!store->windows || !own)
        return DDSTORE_OK;
    ddstore__segment_ref(own); /* the window's */
    int rc = mpi->window_open(mpi->comm.arg, own->map, own->map_bytes, own,
                              drop_segment, &var->window, &mine);
    rc = ddstore__store_agree(store, rc ? &mine : NULL, what, NULL, 0, &g, err);
    ddstore__gathered_free(&g);
    return rc;
}

static int add_agreed(ddstore *store, const char *what, const ddstore_shard *shard,
                      const ddstore__gathered *g, ddstore__variable_record *record,
                      ddstore_var **out, ddstore_error *err)
{
    ddstore_error mine;
    ddstore__segment *own = NULL;
    ddstore_var *var = NULL;
    memcpy(record->run, store->access.ticket.run, 16);
    memcpy(record->secret, store->access.ticket.secret, 16);
    snprintf(record->ns, sizeof(record->ns), "%s", store->ns);
    int rc = make_shard(store, record, shard, need_of_host(store, g), &own, &mine);
    rc = tell_shards(store, what, own, rc ? &mine : NULL, record, err);
    if (!rc)
        rc = make_var(store, what, record, &var, err);
    if (!rc)
        rc = open_window(store, what, own, var, err);
    if (!rc)
        rc = tell_published(store, what, record, err);
    if (rc) {
        if (var)
            ddstore__var_free(var);
        ddstore__segment_withdraw(own);
        return rc;
    }
    var->own = own;
    ddstore__var_enter(store, var);
    if (out)
        *out = var;
    return DDSTORE_OK;
}

static int add(ddstore *store, const char *name, const ddstore_shard *shard,
               const ddstore_error *failure, ddstore_var **out, ddstore_error *err)
{
    ddstore__gathered g;
    ddstore__buffer b = {0};
    ddstore__variable_record record = {.ranks = store->size};
    char what[200];
    snprintf(what, sizeof(what), "add of variable %.150s", name);
    record.rank = calloc((size_t)store->size, sizeof(*record.rank));
    encode_spec(store, name, shard, &b);
    if (b.failed || !record.rank) {
        free(b.data);
        free(record.rank);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for %s", what);
    }
    int rc = ddstore__store_agree(store, failure, what, b.data, b.bytes, &g, err);
    free(b.data);
    if (!rc)
        rc = agree_spec(store, name, &g, &record, err);
    if (!rc)
        rc = add_agreed(store, what, shard, &g, &record, out, err);
    ddstore__gathered_free(&g);
    ddstore__record_free(&record);
    return rc;
}

static int add_failed(ddstore *store, const char *name, const ddstore_error *why,
                      ddstore_error *err)
{
    const char *known = name && strlen(name) <= 1024 ? name : "?";
    int rc = add(store, known, &(ddstore_shard){0}, why, NULL, err);
    if (store->comm->broken) /* they have not all heard of it */
        return rc;
    return ddstore__fail(err, why->code, "add of variable %.150s failed on rank %d: %s",
                         known, store->rank, why->message);
}

int ddstore_add_failed(ddstore *store, const char *name, const ddstore_error *why,
                       ddstore_error *err)
{
    int rc;
    ddstore__reader *reader =
        ddstore__collective_enter(store, DDSTORE__CALL_ADD, &rc, err);
    if (!reader)
        return rc;
    return ddstore__collective_leave(store, reader, add_failed(store, name, why, err));
}

int ddstore_add(ddstore *store, const char *name, const ddstore_shard *shard,
                ddstore_var **out, ddstore_error *err)
{
    int rc;
    ddstore_error mine;
    ddstore__reader *reader =
        ddstore__collective_enter(store, DDSTORE__CALL_ADD, &rc, err);
    if (!reader)
        return rc;
    rc = check_shard(store, name, shard, &mine)
             ? add_failed(store, name, &mine, err)
             : add(store, name, shard, NULL, out, err);
    return ddstore__collective_leave(store, reader, rc);
}

/* Variables: adding one collectively, overwriting this rank's rows, and looking at them. */
#include "store.h"

#include "memory.h"

#include <stdio.h>
#include <stdlib.h>

struct ddstore_view {
    ddstore__segment *seg;
};

/* Well-formed UTF-8 without NUL; C strings have none. */
static bool is_utf8(const char *text)
{
    for (const uint8_t *p = (const void *)text; *p;) {
        int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : (*p & 0xf0) == 0xe0 ? 2 : 3;
        if (more == 3 && (*p & 0xf8) != 0xf0)
            return false;
        for (p++; more--; p++)
            if ((*p & 0xc0) != 0x80)
                return false;
    }
    return true;
}

int ddstore__check_name(const char *name, ddstore_error *err)
{
    size_t n = name ? strlen(name) : 0;
    if (n == 0 || n > 1024)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "a variable's name has 1 to 1,024 bytes, this one %zu", n);
    if (!is_utf8(name))
        return ddstore__fail(err, DDSTORE_EINVAL, "the variable's name is not UTF-8");
    return DDSTORE_OK;
}

ddstore_var *ddstore_find(ddstore *store, const char *name)
{
    ddstore_var *found = NULL; /* the newest: an extra may have joined again */
    for (ddstore_var *v = atomic_load(&store->vars); v; v = v->next)
        if (strcmp(v->name, name) == 0)
            found = v;
    return found;
}

ddstore_var *ddstore_var_at(ddstore *store, size_t i)
{
    ddstore_var *v = atomic_load(&store->vars);
    while (v && i--)
        v = v->next;
    return v;
}

int ddstore_info(const ddstore_var *var, ddstore_var_info *out)
{
    int rank = var->store->rank;
    *out = (ddstore_var_info){
        .name = var->name,
        .dtype = var->dtype,
        .total_rows = ddstore__layout_total(&var->layout),
        .disp = var->disp,
        .row_bytes = var->row_bytes,
        .itemsize = var->itemsize,
    };
    if (rank >= 0) {
        out->local_start = var->layout.start[rank];
        out->local_rows = var->layout.start[rank + 1] - var->layout.start[rank];
    }
    return DDSTORE_OK;
}

void ddstore__var_detach(ddstore_var *var)
{
    for (int r = 0; var->part && r < var->ranks; r++)
        ddstore__detach(&var->part[r]);
    if (var->own)
        ddstore__segment_unref(var->own);
    var->own = NULL;
}

void ddstore__var_free(ddstore_var *var)
{
    ddstore__var_detach(var);
    for (int r = 0; var->part && r < var->ranks; r++)
        ddstore__peer_put(var->part[r].peer);
    ddstore__layout_close(&var->layout);
    free(var->part);
    free(var->name);
    free(var->dtype);
    free(var);
}

static int fill_var(ddstore_var *var, const ddstore__variable_record *record,
                    ddstore_error *err)
{
    int64_t *rows = malloc((size_t)record->ranks * sizeof(*rows));
    var->name = strdup(record->name);
    var->dtype = strdup(record->dtype);
    var->part = calloc((size_t)record->ranks, sizeof(*var->part));
    if (!rows || !var->name || !var->dtype || !var->part) {
        free(rows);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for variable %s", record->name);
    }
    var->ranks = record->ranks;
    for (int r = 0; r < record->ranks; r++)
        rows[r] = record->rank[r].rows;
    int rc = ddstore__layout_open(rows, record->ranks, &var->layout);
    free(rows);
    if (rc)
        return ddstore__fail(err, rc, "variable %s has too many rows", record->name);
    for (int r = 0; r < record->ranks; r++) {
        ddstore__attachment *a = &var->part[r];
        a->at = record->rank[r].at;
        a->peer = ddstore__peer_get(&record->rank[r].contact, var->store->engine->self.uid);
        if (!a->peer)
            return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for rank %d", r);
        a->lost = &a->peer->lost;
    }
    return DDSTORE_OK;
}

int ddstore__var_make(ddstore *store, const ddstore__variable_record *record,
                      const ddstore__ticket *ticket, ddstore_var **out, ddstore_error *err)
{
    ddstore_var *var = calloc(1, sizeof(*var));
    if (!var)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for variable %s", record->name);
    var->store = store;
    var->disp = record->disp;
    var->itemsize = record->itemsize;
    var->row_bytes = record->disp * record->itemsize;
    var->access = store->access;
    var->access.ticket = *ticket;
    int rc = fill_var(var, record, err);
    if (rc) {
        ddstore__var_free(var);
        return rc;
    }
    *out = var;
    return DDSTORE_OK;
}

void ddstore__var_enter(ddstore *store, ddstore_var *var)
{
    pthread_mutex_lock(&store->lock);
    _Atomic(ddstore_var *) *first = &store->vars;
    ddstore_var *last = atomic_load(first);
    while (last && last->next)
        last = last->next;
    if (last)
        last->next = var;
    else
        atomic_store(first, var);
    pthread_mutex_unlock(&store->lock);
}

/* -- adding -- */

/* Each rank's part of the first exchange. */
typedef struct spec {
    int64_t rows;
    uint64_t disp;
    uint32_t itemsize;
    const uint8_t *boot_id;
    const char *name, *dtype; /* not terminated */
    uint16_t name_bytes, dtype_bytes;
} spec;

static void encode_spec(const ddstore *store, const char *name, const ddstore_shard *shard,
                        ddstore__buffer *b)
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
    if (shard->rows && shard->itemsize == 0)
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s: itemsize is 0", name);
    if (__builtin_mul_overflow(shard->disp, (uint64_t)shard->itemsize, &row_bytes) ||
        __builtin_mul_overflow((uint64_t)shard->rows, row_bytes, &bytes) ||
        bytes > (1ULL << 61))
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s is too large", name);
    if (shard->dtype && strlen(shard->dtype) > UINT16_MAX)
        return ddstore__fail(err, DDSTORE_EINVAL, "variable %s: its dtype is too long", name);
    return DDSTORE_OK;
}

/* Rank r against the first that has rows; ranks without rows agree with anything. */
static int check_spec(const char *name, const spec *first, int first_rank, const spec *s,
                      int r, const spec *zero, ddstore_error *err)
{
    if (s->name_bytes != zero->name_bytes || memcmp(s->name, zero->name, s->name_bytes) != 0)
        return ddstore__fail(err, DDSTORE_EINVAL, "rank %d adds variable %.*s and rank 0 %.*s",
                             r, s->name_bytes, s->name, zero->name_bytes, zero->name);
    if (!s->rows)
        return DDSTORE_OK;
    if (s->dtype_bytes != first->dtype_bytes ||
        memcmp(s->dtype, first->dtype, s->dtype_bytes) != 0)
        return ddstore__fail(err, DDSTORE_ETYPE,
                             "variable %s has dtype %.*s on rank %d and %.*s on rank %d", name,
                             s->dtype_bytes, s->dtype, r, first->dtype_bytes, first->dtype,
                             first_rank);
    if (s->disp != first->disp || s->itemsize != first->itemsize)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "variable %s has rows of %llu elements of %u bytes on rank %d "
                             "and of %llu of %u on rank %d",
                             name, (unsigned long long)s->disp, s->itemsize, r,
                             (unsigned long long)first->disp, first->itemsize, first_rank);
    return DDSTORE_OK;
}

/* The variable that all agreed on. */
static int agree_spec(const ddstore *store, const char *name, const ddstore__gathered *g,
                      ddstore__variable_record *record, ddstore_error *err)
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
                     : ddstore__fail(err, DDSTORE_ECONFLICT, "rank %d runs another version",
                                     r);
        if (rc)
            return rc;
        record->rank[r].rows = s.rows;
    }
    record->disp = first.disp;
    record->itemsize = first.itemsize;
    record->dtype = strndup(first.dtype, first.dtype_bytes);
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
    snprintf(what, sizeof(what), "variable %.100s (all ranks of this host)", record->name);
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
            rc = ddstore__fail(err, DDSTORE_ECONFLICT, "rank %d runs another version", r);
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
        rc = ddstore__var_make(store, record, &store->access.ticket, &var, err);
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
    static const ddstore_shard nothing = {0};
    ddstore__gathered g;
    ddstore__buffer b = {0};
    ddstore__variable_record record = {.ranks = store->size};
    char what[200];
    snprintf(what, sizeof(what), "add of variable %.150s", name);
    record.rank = calloc((size_t)store->size, sizeof(*record.rank));
    encode_spec(store, name, failure ? &nothing : shard, &b);
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

static int check_collective(ddstore *store, ddstore_error *err)
{
    int rc = ddstore__store_usable(store, err);
    if (!rc && !store->comm)
        rc = ddstore__fail(err, DDSTORE_EINVAL,
                           "an extra member reads variables, it can't add them");
    return rc;
}

int ddstore_add_failed(ddstore *store, const char *name, const ddstore_error *why,
                       ddstore_error *err)
{
    int rc = check_collective(store, err);
    if (rc)
        return rc;
    (void)add(store, name && strlen(name) <= 1024 ? name : "?", NULL, why, NULL, err);
    return ddstore__fail(err, why->code, "%s", why->message);
}

int ddstore_add(ddstore *store, const char *name, const ddstore_shard *shard,
                ddstore_var **out, ddstore_error *err)
{
    ddstore_error mine;
    int rc = check_collective(store, err);
    if (rc)
        return rc;
    if (check_shard(store, name, shard, &mine))
        return ddstore_add_failed(store, name, &mine, err);
    return add(store, name, shard, NULL, out, err);
}

/* -- this rank's own rows -- */

static int check_update(const ddstore_var *var, int64_t rows, int64_t row_offset,
                        ddstore_error *err)
{
    if (!var->own)
        return ddstore__fail(err, DDSTORE_EINVAL, "an extra member has no rows of its own");
    int rank = var->store->rank;
    int64_t have = var->layout.start[rank + 1] - var->layout.start[rank];
    if (rows < 0 || row_offset < 0 || rows > have || row_offset > have - rows)
        return ddstore__fail(err, DDSTORE_EINDEX,
                             "update of variable %s: rows %lld to %lld are not in this "
                             "rank's %lld rows",
                             var->name, (long long)row_offset,
                             (long long)row_offset + (long long)rows, (long long)have);
    return DDSTORE_OK;
}

int ddstore_update(ddstore_var *var, const void *data, int64_t rows, int64_t row_offset,
                   ddstore_error *err)
{
    ddstore__reader *reader = ddstore__reader_enter(var->store);
    if (!reader)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for an update");
    int rc = ddstore__store_usable(var->store, err);
    if (!rc)
        rc = check_update(var, rows, row_offset, err);
    if (!rc && rows && var->row_bytes)
        memcpy(ddstore__segment_data(var->own) + (uint64_t)row_offset * var->row_bytes, data,
               (uint64_t)rows * var->row_bytes);
    ddstore__reader_leave(reader);
    return rc;
}

int ddstore_view_open(ddstore_var *var, void **data, uint64_t *bytes, ddstore_view **out,
                      ddstore_error *err)
{
    ddstore_view *view = calloc(1, sizeof(*view));
    ddstore__reader *reader = view ? ddstore__reader_enter(var->store) : NULL;
    if (!reader) {
        free(view);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a view");
    }
    int rc = ddstore__store_usable(var->store, err);
    if (!rc)
        rc = check_update(var, 0, 0, err);
    if (!rc) {
        view->seg = var->own;
        ddstore__segment_ref(view->seg);
        *data = ddstore__segment_data(view->seg);
        *bytes = view->seg->bytes;
        *out = view;
    } else {
        free(view);
    }
    ddstore__reader_leave(reader);
    return rc;
}

void ddstore_view_close(ddstore_view *view)
{
    if (!view)
        return;
    ddstore__segment_unref(view->seg);
    free(view);
}

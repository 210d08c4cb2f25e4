/* Variables: their list, their shape, and this rank's own rows. */
#include "store.h"

#include <stdio.h>
#include <stdlib.h>

struct ddstore_view {
    ddstore__segment *seg;
};

/* Well-formed UTF-8 without NUL; C strings have none. */
static bool is_utf8(const char *text)
{
    for (const uint8_t *p = (const void *)text; *p;) {
        uint8_t lead = *p++; /* bounds what its first follower may be */
        uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        int more = lead < 0x80                   ? 0
                   : lead >= 0xc2 && lead < 0xe0 ? 1
                   : lead >= 0xe0 && lead < 0xf0 ? 2
                   : lead >= 0xf0 && lead < 0xf5 ? 3
                                                 : -1;
        if (more < 0)
            return false;
        for (; more--; p++, low = 0x80, high = 0xbf)
            if (*p < low || *p > high)
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
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for variable %s",
                             record->name);
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
        a->peer =
            ddstore__peer_get(&record->rank[r].contact, var->store->engine->self.uid);
        if (!a->peer)
            return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for rank %d", r);
        a->lost = &a->peer->lost;
    }
    return DDSTORE_OK;
}

int ddstore__var_make(ddstore *store, const ddstore__variable_record *record,
                      const ddstore__ticket *ticket, ddstore_var **out,
                      ddstore_error *err)
{
    ddstore_var *var = calloc(1, sizeof(*var));
    if (!var)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for variable %s",
                             record->name);
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
    var->number = last ? last->number + 1 : 0;
    if (last)
        last->next = var;
    else
        atomic_store(first, var);
    pthread_mutex_unlock(&store->lock);
}

/* -- this rank's own rows -- */

static int check_update(const ddstore_var *var, int64_t rows, int64_t row_offset,
                        ddstore_error *err)
{
    if (!var->own)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "%s has no rows of its own: it is read-only",
                             ddstore__who(var->store));
    int rank = var->store->rank;
    int64_t have = var->layout.start[rank + 1] - var->layout.start[rank];
    if (rows < 0 || row_offset < 0 || rows > have || row_offset > have - rows)
        return ddstore__fail(
            err, DDSTORE_EINDEX,
            "update of variable %s: %lld rows from row %lld on are not "
            "all among this rank's %lld rows",
            var->name, (long long)rows, (long long)row_offset, (long long)have);
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
        memmove(ddstore__segment_data(var->own) + (uint64_t)row_offset * var->row_bytes,
                data, (uint64_t)rows * var->row_bytes); /* data may be of a view */
    ddstore__reader_leave(reader);
    return rc;
}

int ddstore_view_open(ddstore_var *var, void **data, uint64_t *bytes,
                      ddstore_view **out, ddstore_error *err)
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

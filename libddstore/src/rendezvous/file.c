/* The file back end: opening and closing a group that meets in a shared directory. */
#include "file.h"

#include "../settings.h"

#include <stdio.h>
#include <stdlib.h>

void ddstore__file_sign(const ddstore__file *f, char type, ddstore__exchange *x)
{
    memset(x, 0, sizeof(*x));
    x->type = type;
    x->seq = f->seq;
    x->rank = (uint32_t)f->base.rank;
    x->size = (uint32_t)f->base.size;
    x->from = f->self;
    memcpy(x->own, f->own, 16);
    memcpy(x->run, f->run, 16);
    memcpy(x->ns, f->ns, sizeof(x->ns));
    memcpy(x->identity, f->identity, sizeof(x->identity));
}

int ddstore__file_write(ddstore__file *f, ddstore__dir *dir, const char *name,
                        const ddstore__exchange *x, ddstore_error *err)
{
    (void)f;
    uint8_t header[DDSTORE__EXCHANGE_HEADER];
    ddstore__exchange_encode(x, header);
    struct iovec parts[3] = {
        {.iov_base = header, .iov_len = sizeof(header)},
        {.iov_base = (void *)(uintptr_t)x->head, .iov_len = x->head_bytes},
        {.iov_base = (void *)(uintptr_t)x->body, .iov_len = x->body_bytes},
    };
    return ddstore__dir_write_parts(dir, name, parts, 3, err);
}

int ddstore__file_look(const ddstore__file *f, ddstore__dir *dir, const char *name,
                       ddstore__file_seen *seen, ddstore_error *err)
{
    memset(seen, 0, sizeof(*seen));
    int rc = ddstore__dir_read_id(dir, name, SIZE_MAX / 2, &seen->data, &seen->bytes,
                                  &seen->id, err);
    if (rc)
        return rc == DDSTORE_ECONFLICT ? DDSTORE_EKEY : rc;
    rc = ddstore__exchange_parse(seen->data, seen->bytes, &seen->x);
    if (!rc && strcmp(seen->x.ns, f->ns) == 0 &&
        strcmp(seen->x.identity, f->identity) == 0)
        return DDSTORE_OK;
    free(seen->data);
    seen->data = NULL;
    return DDSTORE_EKEY;
}

/* -- opening -- */

static int check_how(const ddstore_comm_file *how, ddstore_error *err)
{
    if (!how)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "no description of the group is given");
    if (how->size < 1 || how->rank < 0 || how->rank >= how->size)
        return ddstore__fail(err, DDSTORE_EINVAL, "rank %d is not one of %d ranks",
                             how->rank, how->size);
    return ddstore__comm_check(how->ns, how->timeout_s, err);
}

/* What the caller left open comes from the settings. */
static int apply_settings(ddstore__file *f, const ddstore_comm_file *how,
                          ddstore_error *err)
{
    ddstore__settings s;
    bool open = !how->dir || !*how->dir || how->timeout_s <= 0;
    memset(&s, 0, sizeof(s));
    int rc = open ? ddstore__settings_load(&s, NULL, 0, err) : DDSTORE_OK;
    if (!rc) {
        const char *path = how->dir && *how->dir ? how->dir : s.handshake_dir;
        f->timeout_s = how->timeout_s > 0 ? how->timeout_s : s.handshake_timeout_s;
        if (!*path)
            rc = ddstore__fail(err, DDSTORE_EINVAL,
                               "no directory is given to meet in: pass one or set "
                               "DDSTORE_HANDSHAKE_DIR");
        else
            rc = ddstore__dir_open(path, true, &f->dir, err);
        if (rc == DDSTORE_EKEY)
            rc = DDSTORE_ESYS;
    }
    ddstore__settings_free(&s);
    return rc;
}

static int open_subs(ddstore__file *f, ddstore_error *err)
{
    char in[160], out[160];
    unsigned long long id = ddstore__hash64(f->identity, strlen(f->identity));
    snprintf(in, sizeof(in), "%s.%016llx.in", f->ns, id);
    snprintf(out, sizeof(out), "%s.%016llx.out", f->ns, id);
    f->in = ddstore__dir_sub(f->dir, in);
    f->out = ddstore__dir_sub(f->dir, out);
    if (!f->in || !f->out)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a communicator");
    return DDSTORE_OK;
}

static void free_file(ddstore__file *f)
{
    ddstore__dir_close(f->in);
    ddstore__dir_close(f->out);
    ddstore__dir_close(f->dir);
    free(f->members);
    free(f);
}

static int meet(ddstore__file *f, const ddstore__contact_probe *probe,
                ddstore_error *err)
{
    int64_t deadline = ddstore__after_s(f->timeout_s);
    if (f->base.rank == 0)
        return ddstore__file_lead(f, probe, deadline, err);
    return ddstore__file_follow(f, deadline, err);
}

/* -- the operations -- */

static int file_allgatherv(ddstore_comm *comm, const void *mine, size_t bytes,
                           void **data, uint64_t *offsets, ddstore_error *err)
{
    return ddstore__file_step((ddstore__file *)comm, DDSTORE__OP_ALLGATHER, mine, bytes,
                              data, offsets, err);
}

static int file_barrier(ddstore_comm *comm, ddstore_error *err)
{
    void *data = NULL;
    int rc = ddstore__file_step((ddstore__file *)comm, DDSTORE__OP_BARRIER, "", 0,
                                &data, NULL, err);
    free(data);
    return rc;
}

/* In a forked child the files, the thread and the descriptors are the parent's. */
static void abandon(ddstore__file *f)
{
    ddstore__dir *dirs[] = {f->in, f->out, f->dir};
    for (size_t i = 0; i < DDSTORE__COUNT(dirs); i++)
        if (dirs[i])
            dirs[i]->fd = -1;
    ddstore__hold_abandon(f->hold);
    free_file(f);
}

static void file_close(ddstore_comm *comm)
{
    ddstore__file *f = (ddstore__file *)comm;
    if (comm->fork_generation != ddstore__fork_generation) {
        abandon(f);
        return;
    }
    if (f->mine[0])
        ddstore__dir_remove(f->in, f->mine);
    ddstore__hold_release(f->hold);
    f->hold = NULL;
    ddstore__file_sweep(f);
    free_file(f);
}

static int file_may_publish(ddstore_comm *comm, ddstore_error *err)
{
    ddstore__file *f = (ddstore__file *)comm;
    return f->hold ? ddstore__hold_check(f->hold, err) : DDSTORE_OK;
}

static const ddstore__rendezvous_ops ops = {
    .name = "file",
    .allgatherv = file_allgatherv,
    .barrier = file_barrier,
    .may_publish = file_may_publish,
    .close = file_close,
};

int ddstore__comm_open_file(const ddstore_comm_file *how,
                            const ddstore__contact_probe *probe, ddstore_comm **out,
                            ddstore_error *err)
{
    if (!out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "no place for the communicator is given");
    *out = NULL;
    int rc = check_how(how, err);
    if (rc)
        return rc;
    ddstore__file *f = calloc(1, sizeof(*f));
    if (!f)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a communicator");
    f->base.ops = &ops;
    f->base.rank = how->rank;
    f->base.size = how->size;
    f->base.fork_generation = ddstore__fork_generation;
    memcpy(f->ns, how->ns, strlen(how->ns));
    ddstore__launch_identity(f->identity, sizeof(f->identity));
    ddstore__process_self(&f->self);
    ddstore__random(f->own, sizeof(f->own));
    rc = apply_settings(f, how, err);
    if (!rc)
        rc = open_subs(f, err);
    if (!rc)
        rc = meet(f, probe, err);
    if (rc) {
        file_close(&f->base);
        return rc;
    }
    *out = &f->base;
    return DDSTORE_OK;
}

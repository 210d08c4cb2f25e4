/* The public face of every rendezvous back end: checks that hold for all of them. */
#include "rendezvous.h"

#include <stdlib.h>

/* Whether comm may take part in another collective. */
int ddstore__comm_enter(ddstore_comm *comm, ddstore_error *err)
{
    if (!comm)
        return ddstore__fail(err, DDSTORE_EINVAL, "no communicator is given");
    if (comm->fork_generation != ddstore__fork_generation)
        return ddstore__fail(
            err, DDSTORE_EFORKED,
            "this communicator was opened before a fork, by the parent "
            "process: open another one in the child");
    if (atomic_load(&comm->closed))
        return ddstore__fail(err, DDSTORE_ECLOSED, "the communicator was closed");
    if (comm->broken)
        return ddstore__fail(err, /* an interrupt is told once */
                             comm->broken == DDSTORE_EINTR ? DDSTORE_ECLOSED
                                                           : comm->broken,
                             "an earlier collective of this communicator failed (%s): "
                             "close it and meet anew",
                             ddstore_code_name(comm->broken));
    if (comm->steps)
        atomic_fetch_add(comm->steps, 1);
    comm->in_step = false;
    return DDSTORE_OK;
}

int ddstore__comm_leave(ddstore_comm *comm, int rc)
{
    if (rc && !comm->in_step)
        comm->broken = rc;
    return rc;
}

int ddstore_comm_rank(const ddstore_comm *comm)
{
    return comm ? comm->rank : DDSTORE_EINVAL;
}

int ddstore_comm_size(const ddstore_comm *comm)
{
    return comm ? comm->size : DDSTORE_EINVAL;
}

int ddstore_comm_allgatherv(ddstore_comm *comm, const void *mine, size_t bytes,
                            void **data, uint64_t *offsets, ddstore_error *err)
{
    if (data)
        *data = NULL;
    if (!data || !offsets || (!mine && bytes))
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "allgatherv needs data, offsets and the caller's bytes");
    int rc = ddstore__comm_enter(comm, err);
    if (rc)
        return rc;
    return ddstore__comm_leave(
        comm, comm->ops->allgatherv(comm, mine, bytes, data, offsets, err));
}

int ddstore_comm_barrier(ddstore_comm *comm, ddstore_error *err)
{
    void *data = NULL;
    int rc = ddstore__comm_enter(comm, err);
    if (rc)
        return rc;
    if (comm->ops->barrier)
        return ddstore__comm_leave(comm, comm->ops->barrier(comm, err));
    uint64_t *offsets = calloc((size_t)comm->size + 1, sizeof(*offsets));
    rc = offsets ? comm->ops->allgatherv(comm, "", 0, &data, offsets, err)
                 : ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a barrier");
    free(data);
    free(offsets);
    return ddstore__comm_leave(comm, rc);
}

void ddstore_comm_wake(ddstore_comm *comm)
{
    if (comm)
        atomic_store(&comm->closed, 1);
}

void ddstore_comm_close(ddstore_comm *comm)
{
    if (comm)
        comm->ops->close(comm);
}

int ddstore_comm_open_file(const ddstore_comm_file *how, ddstore_comm **out,
                           ddstore_error *err)
{
    return ddstore__comm_open_file(how, NULL, out, err);
}

int ddstore__comm_may_publish(ddstore_comm *comm, ddstore_error *err)
{
    return comm->ops->may_publish ? comm->ops->may_publish(comm, err) : DDSTORE_OK;
}

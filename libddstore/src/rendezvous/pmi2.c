/* A group that meets through the launcher: PMI2, as srun --mpi=pmi2 offers it. It spans
 * all tasks of the step. PMI2 is never finalized: a later group may meet by it again,
 * and a process that just ends is fine with Slurm.
 */
#include "pmi2_task.h"

#include "../settings.h"

#include <pthread.h>
#include <stdlib.h>

struct pmi2_comm {
    ddstore_comm base;
    const ddstore__pmi2_api *api;
    ddstore__pmi2_launch launch;
    uint64_t group;
    int64_t timeout_ns;
};

/* What the launcher has told: asked once a process. */
static struct {
    pthread_mutex_t lock;
    bool known;
    ddstore__pmi2_launch launch;
} joined = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_uint joined_by = UINT32_MAX; /* the fork generation that asked */

static int timed_out(const struct pmi2_comm *c, ddstore_error *err)
{
    char missing[512] = "";
    const ddstore__watch *watch = c->base.watch;
    if (watch)
        watch->missing(watch->arg, missing, sizeof(missing));
    return ddstore__fail(
        err, DDSTORE_ETIMEDOUT,
        "not all %d ranks of the step came within %g s (DDSTORE_HANDSHAKE_TIMEOUT_S): "
        "%s%s",
        c->base.size, (double)c->timeout_ns / 1e9, *missing ? "missing " : "",
        *missing ? missing : "a rank is absent or is in another call");
}

static int run(struct pmi2_comm *c, ddstore__pmi2_task *task, ddstore_error *err)
{
    int rc = ddstore__pmi2_task_run(task, c->timeout_ns, &c->base.closed, c->base.watch,
                                    err);
    if (rc == DDSTORE_ETIMEDOUT)
        return timed_out(c, err);
    if (!rc && task->rc && err)
        *err = task->err;
    return rc ? rc : task->rc;
}

static int no_memory(ddstore_error *err)
{
    return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for an exchange by PMI2");
}

static int pmi2_allgatherv(ddstore_comm *comm, const void *mine, size_t bytes,
                           void **data, uint64_t *offsets, ddstore_error *err)
{
    struct pmi2_comm *c = (struct pmi2_comm *)comm;
    ddstore__pmi2_task *task =
        ddstore__pmi2_task_new(c->api, DDSTORE__PMI2_GATHER, &c->launch);
    if (!task || !(task->mine = malloc(bytes + 1))) {
        ddstore__pmi2_task_release(task);
        return no_memory(err);
    }
    if (bytes)
        memcpy(task->mine, mine, bytes);
    task->bytes = bytes;
    task->group = c->group;
    int rc = run(c, task, err);
    if (!rc) {
        *data = task->data;
        task->data = NULL;
        memcpy(offsets, task->offsets, ((size_t)comm->size + 1) * sizeof(*offsets));
    }
    ddstore__pmi2_task_release(task);
    return rc;
}

static int pmi2_barrier(ddstore_comm *comm, ddstore_error *err)
{
    struct pmi2_comm *c = (struct pmi2_comm *)comm;
    ddstore__pmi2_task *task =
        ddstore__pmi2_task_new(c->api, DDSTORE__PMI2_FENCE, &c->launch);
    int rc = task ? run(c, task, err) : no_memory(err);
    ddstore__pmi2_task_release(task);
    return rc;
}

static void pmi2_close(ddstore_comm *comm)
{
    free(comm);
}

static const ddstore__rendezvous_ops ops = {
    .name = "pmi2",
    .ends_by_timeout = true,
    .allgatherv = pmi2_allgatherv,
    .barrier = pmi2_barrier,
    .close = pmi2_close,
};

/* Rank and size, of the launcher. It answers at once, if it is one. */
static int join(struct pmi2_comm *c, ddstore_error *err)
{
    if (atomic_load(&joined_by) != UINT32_MAX &&
        atomic_load(&joined_by) != ddstore__fork_generation)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "PMI2 is the parent's: this process was forked by a "
                             "member");
    pthread_mutex_lock(&joined.lock);
    int rc = DDSTORE_OK;
    if (!joined.known) {
        const ddstore__pmi2_launch nobody = {0};
        ddstore__pmi2_task *task =
            ddstore__pmi2_task_new(c->api, DDSTORE__PMI2_JOIN, &nobody);
        atomic_store(&joined_by, ddstore__fork_generation);
        rc = task ? run(c, task, err) : no_memory(err);
        joined.known = !rc;
        if (!rc)
            joined.launch = task->launch;
        ddstore__pmi2_task_release(task);
    }
    c->launch = joined.launch;
    pthread_mutex_unlock(&joined.lock);
    return rc;
}

int ddstore_comm_open_pmi2(const ddstore_comm_pmi2 *how, ddstore_comm **out,
                           ddstore_error *err)
{
    ddstore__settings settings = {0};
    if (!out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "no place for the communicator is given");
    *out = NULL;
    if (!how)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "no description of the group is given");
    int rc = ddstore__comm_check(how->ns, how->timeout_s, err);
    if (rc)
        return rc;
    struct pmi2_comm *c = calloc(1, sizeof(*c));
    if (!c)
        return no_memory(err);
    rc = ddstore__settings_load(&settings, NULL, 0, err);
    if (!rc)
        rc = ddstore__pmi2_load(&settings, &c->api, err);
    if (!rc) {
        c->timeout_ns = ddstore__comm_timeout_ns(how->timeout_s);
        c->group = ddstore__hash64(how->ns, strlen(how->ns));
        c->base.ops = &ops;
        c->base.fork_generation = ddstore__fork_generation;
        rc = join(c, err);
    }
    ddstore__settings_free(&settings);
    if (rc) {
        free(c);
        return rc;
    }
    c->base.rank = c->launch.rank;
    c->base.size = c->launch.size;
    *out = &c->base;
    return DDSTORE_OK;
}

/* What is asked of PMI2, done by a thread of its own: a caller waits as long as it
 * wants to and no longer, though libpmi2 knows no deadlines.
 */
#ifndef DDSTORE_PMI2_TASK_H
#define DDSTORE_PMI2_TASK_H

#include "pmi2_load.h"
#include "rendezvous.h"

enum ddstore__pmi2_what {
    DDSTORE__PMI2_JOIN,  /* the launcher's first word: rank, size, name of the job */
    DDSTORE__PMI2_FENCE, /* a barrier */
    DDSTORE__PMI2_GATHER
};

typedef struct ddstore__pmi2_launch {
    int rank, size;
    char job[256];
} ddstore__pmi2_launch;

typedef struct ddstore__pmi2_task {
    const ddstore__pmi2_api *api;
    enum ddstore__pmi2_what what;
    ddstore__pmi2_launch launch;
    uint64_t group; /* tells groups of one launch apart */

    uint8_t *mine; /* GATHER: this rank's bytes; the task's own */
    size_t bytes;

    uint8_t *data;     /* of all ranks; malloc'd */
    uint64_t *offsets; /* size + 1 of them */
    int rc;
    ddstore_error err;

    uint32_t number; /* of this process's gathers */
    atomic_int refs, done;
} ddstore__pmi2_task;

/* NULL: no memory. Release with ddstore__pmi2_task_release. */
ddstore__pmi2_task *ddstore__pmi2_task_new(const ddstore__pmi2_api *api,
                                           enum ddstore__pmi2_what what,
                                           const ddstore__pmi2_launch *launch);

/* Runs it when this process's task before it has ended, and waits for its end; its
 * result stands in it then. Else DDSTORE_ETIMEDOUT (err untouched), DDSTORE_ECLOSED,
 * DDSTORE_EINTR or what watch (nullable) says: the task goes on, and the caller's only
 * way with it is to release it. One thread a task. */
int ddstore__pmi2_task_run(ddstore__pmi2_task *task, int64_t timeout_ns,
                           const atomic_int *closed, const ddstore__watch *watch,
                           ddstore_error *err);

void ddstore__pmi2_task_release(ddstore__pmi2_task *task);

#endif

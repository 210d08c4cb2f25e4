/* libpmi2, loaded at run time: the key-value space of a step (srun --mpi=pmi2). It
 * knows no deadlines: only what pmi2_task.c runs may call it.
 */
#ifndef DDSTORE_PMI2_LOAD_H
#define DDSTORE_PMI2_LOAD_H

#include "../settings.h"

/* All return 0 or a code of PMI2's. */
#define DDSTORE__PMI2_SYMBOLS(X)                                                       \
    X(Initialized, (void)) /* 1 or 0 */                                                \
    X(Init, (int *spawned, int *size, int *rank, int *appnum))                         \
    X(Job_GetId, (char *id, int room))                                                 \
    X(KVS_Put, (const char *key, const char *value))                                   \
    X(KVS_Fence, (void))                                                               \
    X(KVS_Get,                                                                         \
      (const char *job, int rank, const char *key, char *value, int room, int *bytes))

typedef struct ddstore__pmi2_api {
/* NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define X(name, parameters) int(*name) parameters;
    DDSTORE__PMI2_SYMBOLS(X)
#undef X
    const char *path;
} ddstore__pmi2_api;

/* The library, loaded once and never unloaded. DDSTORE_EUNSUPPORTED: it can't be, or no
 * launcher offers PMI2 to this process; err says which. Any thread, never after a fork.
 */
int ddstore__pmi2_load(const ddstore__settings *settings, const ddstore__pmi2_api **out,
                       ddstore_error *err);

#endif

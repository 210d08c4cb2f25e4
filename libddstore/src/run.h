/* Runs: the groups that this process is a member of. Who connects to it proves to know
 * the run's secret and may then read that run's segments and records, nothing else. */
#ifndef DDSTORE_RUN_H
#define DDSTORE_RUN_H

#include "wire.h"

typedef struct ddstore__record {
    struct ddstore__record *next;
    size_t bytes;
    char *name; /* of the variable; behind it `bytes` bytes of record */
    uint8_t *data;
} ddstore__record;

typedef struct ddstore__run {
    struct ddstore__run *next;
    uint8_t id[16], secret[16];
    int refs, members;        /* under the table's lock */
    atomic_int closing;       /* no member serves any more */
    atomic_ullong steps;      /* collectives that this member has entered */
    ddstore__record *records; /* under the table's lock; only ever added or replaced */
} ddstore__run;

/* Enters this process as a member that serves the run. NULL: no memory. */
ddstore__run *ddstore__run_open(const uint8_t id[16], const uint8_t secret[16]);
/* The member leaves; with the last one the run is closing and its channels are told. */
void ddstore__run_close(ddstore__run *run);

/* All runs are closing: the process is about to end. */
void ddstore__run_close_all(void);

ddstore__run *ddstore__run_find(const uint8_t id[16]); /* with a reference, or NULL */
void ddstore__run_unref(ddstore__run *run);

/* Offers a record to extra members that can't find its file. */
int ddstore__run_publish(ddstore__run *run, const char *name, const void *data,
                         size_t bytes);
/* A malloc'd copy, or NULL. */
uint8_t *ddstore__run_record(ddstore__run *run, const char *name, size_t *bytes);

void ddstore__run_child(void); /* after fork: forget */

#endif

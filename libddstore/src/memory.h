/* How much memory may still be committed: the machine's and the control groups' rest.
 */
#ifndef DDSTORE_MEMORY_H
#define DDSTORE_MEMORY_H

#include "base.h"

typedef struct ddstore__memory {
    uint64_t free;   /* bytes that may be committed, a reserve of 5 % taken off */
    uint64_t limit;  /* of what bounds it */
    char bound[160]; /* "this machine" or the control group's file */
} ddstore__memory;

void ddstore__memory_read(ddstore__memory *out);

/* DDSTORE_ENOMEM with need, free and limit where `need` bytes don't fit. */
int ddstore__memory_check(uint64_t need, const char *what, ddstore_error *err);

#endif

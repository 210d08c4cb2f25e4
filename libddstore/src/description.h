/* Descriptions: what another process, or another reader of this one, needs to read the
 * variables of a store, as bytes. Encoding and strict decoding only.
 *
 * A head, then entries in any order, an end and a checksum. An entry is a group of core
 * ranks (run, secret, contacts), or a variable of a group that came before it (shape,
 * and rows and segment of each rank). */
#ifndef DDSTORE_DESCRIPTION_H
#define DDSTORE_DESCRIPTION_H

#include "record.h"

typedef struct ddstore__group_record {
    uint8_t run[16], secret[16];
    int ranks;
    ddstore__contact *contact; /* ranks of them */
} ddstore__group_record;

#define DDSTORE__NO_GROUP UINT32_MAX

typedef struct ddstore__description {
    int method, rank; /* of the store described; -1: an extra member */
    char ns[104];
    uint32_t n_groups;
    ddstore__group_record *group;
    uint32_t current; /* once the end was reached: the group that the store belongs to,
                         or DDSTORE__NO_GROUP */
    ddstore__cursor at;
} ddstore__description;

/* -- writing; b->failed: no memory -- */

void ddstore__description_begin(ddstore__buffer *b, int method, int rank,
                                const char *ns);
void ddstore__description_add_group(ddstore__buffer *b, const uint8_t run[16],
                                    const uint8_t secret[16], int ranks);
/* As many as the group has ranks, right behind it. */
void ddstore__description_add_contact(ddstore__buffer *b,
                                      const ddstore__contact *contact);
/* Of the record, run, secret, ns and contacts are the group's. */
void ddstore__description_add_variable(ddstore__buffer *b, uint32_t group,
                                       const ddstore__variable_record *r);
void ddstore__description_end(ddstore__buffer *b, uint32_t current);

/* -- reading bytes from outside -- */

/* DDSTORE_EINVAL: damaged, or not of this version. `in` stays while it is read. Close
 * with ddstore__description_close, also after failure. */
int ddstore__description_open(const uint8_t *in, size_t bytes,
                              ddstore__description *out);
/* 1: *variable is the next one, to be freed with ddstore__record_free; *group is its
 * group's number; 0: it was the last; DDSTORE_EINVAL as above; DDSTORE_ENOMEM. */
int ddstore__description_next(ddstore__description *d, uint32_t *group,
                              ddstore__variable_record *variable);
void ddstore__description_close(ddstore__description *d);

#endif

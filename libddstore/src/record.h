/* Records: what a core group tells extra members about one variable, as a file or over
 * a channel: the run and its secret, the shape, and each rank's rows, contact and
 * segment. */
#ifndef DDSTORE_RECORD_H
#define DDSTORE_RECORD_H

#include "wire.h"

typedef struct ddstore__rank_record {
    int64_t rows;
    ddstore__contact contact;
    ddstore__descriptor at;
} ddstore__rank_record;

typedef struct ddstore__variable_record {
    uint8_t run[16], secret[16];
    char ns[104];
    char *name, *dtype;
    uint64_t disp;
    uint32_t itemsize;
    int ranks;
    ddstore__rank_record *rank; /* ranks of them */
} ddstore__variable_record;

/* Appends the record; b->failed: no memory. */
void ddstore__record_encode(const ddstore__variable_record *r, ddstore__buffer *b);

/* DDSTORE_EINVAL: not a whole, undamaged record of this version. Free with
 * ddstore__record_free, also after failure. */
int ddstore__record_decode(const uint8_t *in, size_t bytes,
                           ddstore__variable_record *out);
void ddstore__record_free(ddstore__variable_record *r);

/* What the claim of a group carries, so that it can be asked over the network. */
#define DDSTORE__CLAIM_CONTACT                                                         \
    (32 + DDSTORE__CONTACT_BYTES) /* run, secret, contact                              \
                                   */

/* Whether every rank's segment holds just its rows. */
bool ddstore__record_fits(const ddstore__variable_record *r);

/* A text behind its length; take: malloc'd, NULL (and c->bad) where it is longer than
 * max, holds a NUL or there is no memory. */
void ddstore__add_text(ddstore__buffer *b, const char *text);
char *ddstore__take_text(ddstore__cursor *c, size_t max);

#endif

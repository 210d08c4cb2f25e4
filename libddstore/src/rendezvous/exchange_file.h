/* The files of an exchange: names, header and contents, parsed as pure functions over
 * bytes that anybody may have written. */
#ifndef DDSTORE_EXCHANGE_FILE_H
#define DDSTORE_EXCHANGE_FILE_H

#include "../base.h"

#define DDSTORE__EXCHANGE_HEADER 568 /* bytes */
#define DDSTORE__EXCHANGE_NAME   128 /* room for a file name */

/* What a file is, by the first letter of its name. Members write into the in directory
 * of a group, rank 0 into its out directory. */
enum ddstore__exchange_type {
    DDSTORE__X_HELLO = 'h',   /* in: h.RANK.OWN */
    DDSTORE__X_ACK = 'a',     /* in: a.RANK.OWN.RUN.NUMBER, the hello renamed */
    DDSTORE__X_PART = 'c',    /* in: c.RANK.RUN.SEQ, a contribution to a step */
    DDSTORE__X_FAILED = 'f',  /* in: f.RANK.OWN.RUN, a member's reason to leave */
    DDSTORE__X_REFUSED = 'x', /* in: x.RANK.OWN.RUN, rank 0 of another group was here */
    DDSTORE__X_PROPOSAL = 'p', /* out: p.RUN.NUMBER */
    DDSTORE__X_COMMIT = 'k',   /* out: k.RUN.NUMBER, the proposal renamed */
    DDSTORE__X_STEP = 's',     /* out: s.RUN.SEQ, all contributions in one */
    DDSTORE__X_ABORT = 'q'     /* out: q.RUN, why the group failed */
};

typedef struct ddstore__exchange_name {
    char type;
    uint32_t rank;
    uint8_t own[16], run[16];
    uint64_t number;
} ddstore__exchange_name;

void ddstore__exchange_name_format(const ddstore__exchange_name *name,
                                   char out[DDSTORE__EXCHANGE_NAME]);
bool ddstore__exchange_name_parse(const char *text, ddstore__exchange_name *out);

enum { DDSTORE__OP_NONE, DDSTORE__OP_ALLGATHER, DDSTORE__OP_BARRIER };

/* One file: a header and two pieces of contents. */
typedef struct ddstore__exchange {
    char type; /* a renamed file keeps the one it was written with */
    uint64_t seq;
    uint32_t rank, size, op;
    uint8_t own[16]; /* nonce of the writer */
    uint8_t run[16]; /* nonce of rank 0, zeros before the first meeting */
    ddstore__process from;
    char ns[104], identity[256];
    const void *head, *body;
    uint64_t head_bytes, body_bytes;
} ddstore__exchange;

void ddstore__exchange_encode(const ddstore__exchange *x,
                              uint8_t out[DDSTORE__EXCHANGE_HEADER]);

/* head and body of *out point into data. DDSTORE_EKEY: shorter than it says (not yet
 * whole); DDSTORE_EUNSUPPORTED: of another version; DDSTORE_EINVAL: damaged. */
int ddstore__exchange_parse(const void *data, size_t bytes, ddstore__exchange *out);

/* A proposal's head: entries of rank and nonce. */
#define DDSTORE__ENTRY 20 /* bytes */
void ddstore__entry_put(uint8_t *entry, uint32_t rank, const uint8_t own[16]);
bool ddstore__entries_have(const ddstore__exchange *x, uint32_t rank,
                           const uint8_t own[16]);

/* A step's head: where each rank's bytes begin in the body, and its end; empty where
 * all are empty. Fills offsets[0..size]; DDSTORE_EINVAL where they don't fit the body.
 */
int ddstore__offsets_parse(const ddstore__exchange *x, uint32_t size,
                           uint64_t *offsets);

/* The body of an abort or a failure: a code and a sentence. false: damaged. */
void ddstore__note_put(const ddstore_error *why, uint8_t *out, size_t *bytes);
bool ddstore__note_parse(const ddstore__exchange *x, ddstore_error *out);
#define DDSTORE__NOTE_LONGEST (4 + sizeof(((ddstore_error *)0)->message))

/* -- claims -- */

#define DDSTORE__CLAIM_FIXED     544 /* bytes before the contact */
#define DDSTORE__CONTACT_LONGEST 65536
#define DDSTORE__CLAIM_LIVE      520 /* where the counter and its check stand */

typedef struct ddstore__claim_image {
    uint8_t nonce[16];
    uint32_t size;
    ddstore__process holder;
    char ns[104], identity[256];
    uint64_t counter;
    bool counter_valid; /* false: read while it was being written */
    const void *contact;
    uint32_t contact_bytes;
} ddstore__claim_image;

/* out: DDSTORE__CLAIM_FIXED + contact_bytes. */
void ddstore__claim_encode(const ddstore__claim_image *claim, uint8_t *out);
void ddstore__claim_encode_live(const ddstore__claim_image *claim, uint8_t out[24]);
/* Results as of ddstore__exchange_parse; contact points into data. */
int ddstore__claim_parse(const void *data, size_t bytes, ddstore__claim_image *out);

#endif

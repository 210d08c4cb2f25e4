/* Rank 0's list of those who answered before a first meeting. */
#ifndef DDSTORE_FILE_LEAD_H
#define DDSTORE_FILE_LEAD_H

#include "file.h"

/* One answer: a nonce published for a rank. */
typedef struct ddstore__candidate {
    ddstore__member who;
    uint32_t rank, size;
    char name[DDSTORE__EXCHANGE_NAME]; /* of its file, as last listed */
    ddstore__file_id id;
    bool whole;     /* its file was read */
    bool dropped;   /* acknowledged nothing while all others did */
    int alive;      /* 1, 0, -1: can't tell from here */
    bool elsewhere; /* it acknowledged another run's proposal */
    unsigned scan;  /* the last listing that showed it */
    unsigned
        rival;     /* the last listing that showed another living answer too; 0: none */
    int64_t since; /* when it was first listed */
    uint64_t acked; /* number of the proposal it acknowledged last */
    int next;       /* of the same rank; -1: none */
} ddstore__candidate;

typedef struct ddstore__lead {
    ddstore__file *f;
    ddstore__poll poll;
    ddstore__candidate *list;
    int n, room;
    int *heads; /* by rank; the last one: ranks that the group hasn't */
    unsigned scan;
    uint64_t number;  /* of the current proposal; 0: none */
    uint8_t *entries; /* of the current proposal */
    size_t entries_bytes;
    char proposal[DDSTORE__EXCHANGE_NAME];
    int64_t answered_at; /* when each rank had an acknowledgement; 0: not yet */
    ddstore_error *err;
} ddstore__lead;

int ddstore__lead_init(ddstore__lead *l, ddstore__file *f, ddstore_error *err);
void ddstore__lead_free(ddstore__lead *l);

/* One listing of the members' files: new answers, acknowledgements, notes. */
int ddstore__lead_scan(ddstore__lead *l);

/* Whether the candidate may be counted on. */
bool ddstore__lead_counts(const ddstore__lead *l, const ddstore__candidate *c);

/* Two living answers for one rank, or a wrong size, fail. */
int ddstore__lead_conflicts(ddstore__lead *l);

/* Looks again whether the candidates of this host live. */
void ddstore__lead_watch(ddstore__lead *l);

#endif

/* The file back end from within: one member's state, and how its parts call one
 * another. Layout of the shared directory: NS.claim; NS.ID.in/ with one file a member
 * and step, each written by that member; NS.ID.out/ with what rank 0 publishes. ID is a
 * hash of the launch identity, so that two launches never share a file. */
#ifndef DDSTORE_RENDEZVOUS_FILE_H
#define DDSTORE_RENDEZVOUS_FILE_H

#include "claim.h"

typedef struct ddstore__member {
    uint8_t own[16];
    ddstore__process from;
} ddstore__member;

typedef struct ddstore__file {
    ddstore_comm base;
    ddstore__dir *dir, *in, *out;
    char ns[104], identity[256];
    double timeout_s;
    uint8_t own[16]; /* this member's nonce */
    uint8_t run[16]; /* rank 0's; known once acked, agreed once met */
    bool acked, met, aborted;
    uint64_t seq; /* of the last step begun */
    ddstore__process self;
    ddstore__process lead;             /* rank 0, once acked */
    ddstore__member *members;          /* rank 0 only: size of them, once met */
    ddstore__hold *hold;               /* rank 0 only */
    char mine[DDSTORE__EXCHANGE_NAME]; /* this member's file in `in`; "": none */
    char last[DDSTORE__EXCHANGE_NAME]; /* rank 0: the file in `out` that the next step's
                                          contributions acknowledge */
} ddstore__file;

/* Everything in x that is the same in all of this member's files. */
void ddstore__file_sign(const ddstore__file *f, char type, ddstore__exchange *x);
int ddstore__file_write(ddstore__file *f, ddstore__dir *dir, const char *name,
                        const ddstore__exchange *x, ddstore_error *err);

/* A file that was read; x points into data. */
typedef struct ddstore__file_seen {
    ddstore__exchange x;
    ddstore__file_id id;
    void *data;
    size_t bytes;
} ddstore__file_seen;

/* 0: a whole file of this namespace and launch. DDSTORE_EKEY: not there, not yet whole,
 * not ours, or not to be trusted. Else a system call failed. Free with
 * free(seen->data). */
int ddstore__file_look(const ddstore__file *f, ddstore__dir *dir, const char *name,
                       ddstore__file_seen *seen, ddstore_error *err);

/* -- file_meet.c, file_lead.c: the first meeting -- */

int ddstore__file_follow(ddstore__file *f, int64_t deadline_ns, ddstore_error *err);
int ddstore__file_lead(ddstore__file *f, const ddstore__contact_probe *probe,
                       int64_t deadline_ns, ddstore_error *err);

/* -- file_abort.c: failures that the others should know -- */

/* Rank 0: publishes why the group fails, for its members and all that say hello. */
void ddstore__file_abort(ddstore__file *f, const ddstore_error *why);
/* Others: tell rank 0 of the run that this member leaves. type: FAILED or REFUSED. */
void ddstore__file_note(ddstore__file *f, char type, const uint8_t run[16],
                        const ddstore_error *why);
/* An abort that concerns this member becomes err; 0: it doesn't. */
int ddstore__file_aborted(ddstore__file *f, const char *name, ddstore_error *err);
/* Rank 0: a note addressed to this run becomes err; 0: it may be ignored. */
int ddstore__file_noted(ddstore__file *f, const char *text,
                        const ddstore__exchange_name *name, ddstore_error *err);
int ddstore__file_duplicate(const ddstore__file *f, uint32_t rank,
                            const ddstore__process *a, const ddstore__process *b,
                            ddstore_error *err);

/* -- file_step.c: one collective -- */

int ddstore__file_step(ddstore__file *f, uint32_t op, const void *mine, size_t bytes,
                       void **data, uint64_t *offsets, ddstore_error *err);

/* -- file_poll.c: waiting -- */

typedef struct ddstore__poll {
    ddstore__file *f;
    ddstore__wait wait;
    int64_t begun, pause, next_check, next_log, next_watch, next_blind;
    /* What a follower saw of the claim. */
    int64_t gone_since;    /* since when it is missing; 0: it isn't */
    int64_t foreign_since; /* since when a living group of another launch holds it */
    uint8_t holder[16];
    uint64_t holder_counter;
    bool holder_moved;
} ddstore__poll;

void ddstore__poll_begin(ddstore__poll *p, ddstore__file *f, int64_t deadline_ns);
void ddstore__poll_restart(ddstore__poll *p); /* something happened: look often again */
/* Sleeps until the next look is due. 0, or why the wait ended (DDSTORE_ETIMEDOUT: err
 * untouched). */
int ddstore__poll_pause(ddstore__poll *p, ddstore_error *err);
bool ddstore__poll_log_due(ddstore__poll *p);   /* every 10 s */
bool ddstore__poll_watch_due(ddstore__poll *p); /* whether the others still live */
bool ddstore__poll_blind_due(ddstore__poll *p); /* open what the listing may not show */

/* Followers: whether rank 0's group can still come to a result. 0, 1: it is over unless
 * a last look finds one (err says why), or a failure. */
int ddstore__poll_watch(ddstore__poll *p, ddstore_error *err);

/* Whether a member of another host is gone or has left, which only its own word tells.
 */
int ddstore__poll_gone(ddstore__poll *p, uint32_t rank, const ddstore__process *who,
                       ddstore_error *err);

/* -- file_report.c: who is missing, in words -- */

typedef struct ddstore__ranks { /* a set */
    uint8_t *bits;
    uint32_t size;
} ddstore__ranks;

bool ddstore__ranks_have(const ddstore__ranks *set, uint32_t rank);
void ddstore__ranks_add(ddstore__ranks *set, uint32_t rank);
/* "rank 1, rank 3" of those not in set. */
void ddstore__ranks_missing(const ddstore__ranks *set, char *out, size_t bytes);

/* Rank 0 passes the ranks that are there; the others NULL: then the directory is asked.
 */
void ddstore__report_waiting(ddstore__poll *p, const ddstore__ranks *here);
int ddstore__report_timeout(ddstore__poll *p, const ddstore__ranks *here,
                            ddstore_error *err);

/* -- file_clean.c -- */

/* Rank 0, once met: removes what dead runs left in this namespace. */
void ddstore__file_clean(ddstore__file *f);
/* Any member, last of all: removes the run's files if nobody needs them any more. */
void ddstore__file_sweep(ddstore__file *f);

#endif

/* The claim: one file a namespace, held by rank 0 of the group that may publish there.
 */
#ifndef DDSTORE_CLAIM_H
#define DDSTORE_CLAIM_H

#include "exchange_dir.h"
#include "exchange_file.h"
#include "rendezvous.h"

/* How long a counter stands still until its holder on another host counts as dead, and
 * how often a holder raises it. Variables for the tests' sake. */
extern int64_t ddstore__claim_still_ns, ddstore__claim_beat_ns;

#define DDSTORE__CLAIM_NAME 256 /* room for a claim's file name */
void ddstore__claim_name(const char *ns, char out[DDSTORE__CLAIM_NAME]);

/* A claim as its file shows it. mark tells one from another: the nonce, or a hash of
 * what can't be parsed, of which rc then says why. */
typedef struct ddstore__claim_seen {
    ddstore__claim_image image; /* without contact */
    uint8_t mark[16];
    int rc;
    void
        *data; /* the file, with the contact in it; freed by ddstore__claim_seen_free */
} ddstore__claim_seen;

/* DDSTORE_EKEY: no such file. Foreign files and system calls fail as usual. */
int ddstore__claim_look(ddstore__dir *dir, const char *file, ddstore__claim_seen *out,
                        ddstore_error *err);
void ddstore__claim_seen_free(ddstore__claim_seen *seen);

/* Says whether the holder of the claim under file lives, waiting for its counter to
 * move where nothing else tells. 0: dead or gone, and *mark is the claim that was
 * judged; DDSTORE_ECONFLICT: it lives, *holder names it, err too; else the wait ended.
 */
int ddstore__claim_judge(ddstore__dir *dir, const char *file, const char *ns,
                         const ddstore__contact_probe *probe, const ddstore__wait *wait,
                         uint8_t mark[16], ddstore__claim_image *holder,
                         ddstore_error *err);

int ddstore__claim_conflict(const ddstore__dir *dir, const ddstore__claim_image *holder,
                            ddstore_error *err);

/* A held claim and the thread that raises its counter. */
typedef struct ddstore__hold ddstore__hold;

/* Takes the namespace of *mine (copied). DDSTORE_ECONFLICT: another group holds it;
 * then *holder tells which (zero nonce: not known). */
int ddstore__hold_take(ddstore__dir *dir, const ddstore__claim_image *mine,
                       const ddstore__contact_probe *probe, const ddstore__wait *wait,
                       ddstore__hold **out, ddstore__claim_image *holder,
                       ddstore_error *err);

/* Before anything is published: the claim is still ours, or was lost and is made again.
 * DDSTORE_ECONFLICT: another group has it. One thread. */
int ddstore__hold_check(ddstore__hold *hold, ddstore_error *err);

void ddstore__hold_release(ddstore__hold *hold);
void ddstore__hold_abandon(ddstore__hold *hold); /* in a forked child: memory only */

#endif

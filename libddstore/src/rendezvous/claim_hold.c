/* Holding a claim: taking it, also over from a dead holder, raising its counter by a
 * thread of its own, and giving it up. */
#include "claim.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define KEEPER_STACK (256 * 1024)

struct ddstore__hold {
    ddstore__dir *dir;
    char file[DDSTORE__CLAIM_NAME], away[DDSTORE__CLAIM_NAME];
    pthread_mutex_t lock; /* all below; held while the claim's file is touched */
    pthread_cond_t changed;
    ddstore__claim_image mine;
    uint8_t *bytes; /* the file as it was last written */
    size_t n_bytes;
    bool stop, running, warned;
    pthread_t keeper;
};

/* Puts our claim where none is. DDSTORE_ECONFLICT: there is one. */
static int plant(ddstore__hold *hold, ddstore_error *err)
{
    ddstore__claim_encode_live(&hold->mine, hold->bytes + DDSTORE__CLAIM_LIVE);
    return ddstore__dir_create(hold->dir, hold->file, hold->bytes, hold->n_bytes, err);
}

/* A claim that was moved by mistake goes back, unless another stands there by now. */
static void put_back(ddstore__hold *hold)
{
    ddstore__file_id id;
    int rc = ddstore__dir_link(hold->dir, hold->away, hold->file);
    if (rc && rc != -EEXIST &&
        ddstore__dir_identify(hold->dir, hold->file, &id) == DDSTORE_EKEY)
        (void)ddstore__dir_rename(hold->dir, hold->away, hold->file);
    ddstore__dir_remove(hold->dir, hold->away);
}

/* Moves the claim that carries mark out of the way. 0: it is gone, 1: look again;
 * another claim's holder is named: DDSTORE_ECONFLICT. */
static int move_away(ddstore__hold *hold, const uint8_t mark[16],
                     ddstore__claim_image *holder, ddstore_error *err)
{
    ddstore__claim_seen seen;
    int moved = ddstore__dir_rename(hold->dir, hold->file, hold->away);
    if (moved && moved != -ENOENT)
        return ddstore__dir_fail(hold->dir, hold->file, "take over", -moved, err);
    /* Even where rename says that there was nothing: a network file system that had to
     * ask twice may have moved it. */
    int rc = ddstore__claim_look(hold->dir, hold->away, &seen, err);
    if (rc == DDSTORE_EKEY)
        return 1;
    if (rc)
        return rc;
    if (memcmp(seen.mark, mark, 16) == 0) {
        rc = ddstore__dir_remove(hold->dir, hold->away);
    } else {
        put_back(hold);
        *holder = seen.image;
        holder->contact = NULL;
        rc = seen.rc ? 1 : ddstore__claim_conflict(hold->dir, holder, err);
    }
    ddstore__claim_seen_free(&seen);
    return rc;
}

static int take(ddstore__hold *hold, const ddstore__contact_probe *probe,
                const ddstore__wait *wait, ddstore__claim_image *holder,
                ddstore_error *err)
{
    for (;;) {
        uint8_t mark[16] = {0};
        int rc = plant(hold, err);
        if (rc != DDSTORE_ECONFLICT)
            return rc;
        rc = ddstore__claim_judge(hold->dir, hold->file, hold->mine.ns, probe, wait,
                                  mark, holder, err);
        if (!rc)
            rc = move_away(hold, mark, holder, err);
        if (rc < 0)
            return rc;
        rc = ddstore__wait_check(wait, err);
        if (rc == DDSTORE_ETIMEDOUT)
            rc = ddstore__fail(err, rc, "could not take %s/%s in time",
                               ddstore__dir_path(hold->dir), hold->file);
        if (rc)
            return rc;
    }
}

/* -- the keeper -- */

/* Raises the counter in place, through a descriptor whose contents were just compared:
 * if the file is moved meanwhile, it is the moved one that changes. */
static int raise_counter(ddstore__hold *hold)
{
    uint8_t fixed[DDSTORE__CLAIM_LIVE], live[24];
    int fd = ddstore__dir_open_file(hold->dir, hold->file, NULL);
    if (fd == DDSTORE_EKEY)
        return plant(hold, NULL);
    if (fd < 0)
        return fd;
    int rc = DDSTORE_OK;
    if (pread(fd, fixed, sizeof(fixed), 0) != (ssize_t)sizeof(fixed) ||
        memcmp(fixed, hold->bytes, sizeof(fixed)) != 0) {
        rc = DDSTORE_ECONFLICT;
    } else {
        hold->mine.counter++;
        ddstore__claim_encode_live(&hold->mine, live);
        if (pwrite(fd, live, sizeof(live), DDSTORE__CLAIM_LIVE) !=
            (ssize_t)sizeof(live))
            rc = DDSTORE_ESYS;
    }
    ddstore__fd_close_file(fd);
    return rc;
}

static void beat(ddstore__hold *hold)
{
    int rc = raise_counter(hold);
    if (rc && !hold->warned)
        ddstore__log_later(DDSTORE_LOG_WARN, "the claim %s/%s %s",
                           ddstore__dir_path(hold->dir), hold->file,
                           rc == DDSTORE_ECONFLICT ? "is not this group's any more"
                                                   : "can't be kept up");
    hold->warned = rc != DDSTORE_OK;
}

static void *keep(void *arg)
{
    ddstore__hold *hold = arg;
    pthread_setname_np(pthread_self(), "ddstore-claim");
    pthread_mutex_lock(&hold->lock);
    while (!hold->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t ns = until.tv_nsec + ddstore__claim_beat_ns;
        until.tv_sec += ns / DDSTORE__S;
        until.tv_nsec = ns % DDSTORE__S;
        int rc = 0;
        while (!hold->stop && rc != ETIMEDOUT)
            rc = pthread_cond_timedwait(&hold->changed, &hold->lock, &until);
        if (!hold->stop)
            beat(hold);
    }
    pthread_mutex_unlock(&hold->lock);
    return NULL;
}

/* All signals stay with the program's own threads. */
static int start_keeper(ddstore__hold *hold, ddstore_error *err)
{
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, KEEPER_STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&hold->keeper, &attr, keep, hold);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return ddstore__fail_errno(err, rc,
                                   "can't start the thread that keeps the claim "
                                   "%s/%s",
                                   ddstore__dir_path(hold->dir), hold->file);
    hold->running = true;
    return DDSTORE_OK;
}

static void stop_keeper(ddstore__hold *hold)
{
    if (!hold->running)
        return;
    pthread_mutex_lock(&hold->lock);
    hold->stop = true;
    pthread_cond_signal(&hold->changed);
    pthread_mutex_unlock(&hold->lock);
    pthread_join(hold->keeper, NULL);
    hold->running = false;
}

/* -- life -- */

static void free_hold(ddstore__hold *hold)
{
    pthread_cond_destroy(&hold->changed);
    pthread_mutex_destroy(&hold->lock);
    free(hold->bytes);
    free(hold);
}

static ddstore__hold *new_hold(ddstore__dir *dir, const ddstore__claim_image *mine)
{
    ddstore__hold *hold = calloc(1, sizeof(*hold));
    if (!hold)
        return NULL;
    hold->n_bytes = DDSTORE__CLAIM_FIXED + mine->contact_bytes;
    hold->bytes = malloc(hold->n_bytes);
    if (!hold->bytes) {
        free(hold);
        return NULL;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&hold->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&hold->lock, NULL);
    hold->dir = dir;
    hold->mine = *mine;
    ddstore__claim_encode(mine, hold->bytes);
    hold->mine.contact = NULL; /* bytes hold it */
    ddstore__claim_name(mine->ns, hold->file);
    char hex[33];
    ddstore__hex16(mine->nonce, hex);
    snprintf(hold->away, sizeof(hold->away), "%s.claim.%s", mine->ns, hex);
    return hold;
}

int ddstore__hold_take(ddstore__dir *dir, const ddstore__claim_image *mine,
                       const ddstore__contact_probe *probe, const ddstore__wait *wait,
                       ddstore__hold **out, ddstore__claim_image *holder,
                       ddstore_error *err)
{
    *out = NULL;
    memset(holder, 0, sizeof(*holder));
    if (mine->contact_bytes > DDSTORE__CONTACT_LONGEST)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "a claim's contact has at most %d bytes",
                             DDSTORE__CONTACT_LONGEST);
    ddstore__hold *hold = new_hold(dir, mine);
    if (!hold)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a claim");
    int rc = take(hold, probe, wait, holder, err);
    if (rc) {
        free_hold(hold);
        return rc;
    }
    rc = start_keeper(hold, err);
    if (rc) {
        ddstore__hold_release(hold);
        return rc;
    }
    *out = hold;
    return DDSTORE_OK;
}

static int check(ddstore__hold *hold, ddstore_error *err)
{
    int rc = DDSTORE_OK;
    for (int tries = 0; tries < 5; tries++) {
        ddstore__claim_seen seen;
        rc = ddstore__claim_look(hold->dir, hold->file, &seen, err);
        if (rc == DDSTORE_EKEY) {
            rc = plant(hold, err);
            if (rc != DDSTORE_ECONFLICT)
                return rc;
            continue;
        }
        if (rc)
            return rc;
        bool ours = !seen.rc && memcmp(seen.mark, hold->mine.nonce, 16) == 0;
        if (!ours && !seen.rc)
            rc = ddstore__claim_conflict(hold->dir, &seen.image, err);
        else if (!ours)
            rc = ddstore__fail(err, DDSTORE_ECONFLICT, "the claim %s/%s is damaged",
                               ddstore__dir_path(hold->dir), hold->file);
        ddstore__claim_seen_free(&seen);
        return rc;
    }
    return rc;
}

int ddstore__hold_check(ddstore__hold *hold, ddstore_error *err)
{
    pthread_mutex_lock(&hold->lock);
    int rc = check(hold, err);
    pthread_mutex_unlock(&hold->lock);
    return rc;
}

void ddstore__hold_release(ddstore__hold *hold)
{
    if (!hold)
        return;
    ddstore__claim_seen seen;
    ddstore__claim_image other;
    stop_keeper(hold);
    int rc = ddstore__claim_look(hold->dir, hold->file, &seen, NULL);
    if (!rc && memcmp(seen.mark, hold->mine.nonce, 16) == 0)
        (void)move_away(hold, hold->mine.nonce, &other, NULL);
    if (!rc)
        ddstore__claim_seen_free(&seen);
    free_hold(hold);
}

void ddstore__hold_abandon(ddstore__hold *hold)
{
    if (!hold)
        return;
    free(hold->bytes);
    free(hold);
}

/* Reading claims and judging whether their holders live. */
#include "claim.h"

#include <stdio.h>
#include <stdlib.h>

#define CLAIM_LONGEST (DDSTORE__CLAIM_FIXED + DDSTORE__CONTACT_LONGEST)
#define SUFFIX        ".claim"

int64_t ddstore__claim_still_ns = 10 * DDSTORE__S;
int64_t ddstore__claim_beat_ns = 2 * DDSTORE__S;

void ddstore__claim_name(const char *ns, char out[DDSTORE__CLAIM_NAME])
{
    snprintf(out, DDSTORE__CLAIM_NAME, "%s" SUFFIX, ns);
}

int ddstore__claim_look(ddstore__dir *dir, const char *file, ddstore__claim_seen *out,
                        ddstore_error *err)
{
    size_t bytes = 0;
    memset(out, 0, sizeof(*out));
    int rc = ddstore__dir_read(dir, file, CLAIM_LONGEST, &out->data, &bytes, err);
    if (rc)
        return rc;
    out->rc = ddstore__claim_parse(out->data, bytes, &out->image);
    if (out->rc)
        ddstore__hash128(out->data, bytes, out->mark);
    else
        memcpy(out->mark, out->image.nonce, 16);
    return DDSTORE_OK;
}

void ddstore__claim_seen_free(ddstore__claim_seen *seen)
{
    free(seen->data);
    seen->data = NULL;
}

int ddstore__claim_conflict(const ddstore__dir *dir, const ddstore__claim_image *holder,
                            ddstore_error *err)
{
    bool launch = holder->identity[0] != '\0';
    return ddstore__fail(
        err, DDSTORE_ECONFLICT,
        "the namespace \"%s\" in %s is held by rank 0 of another group, "
        "%s:%u (%u members%s%s): wait until it has ended, or use another "
        "directory or namespace",
        holder->ns, ddstore__dir_path(dir), holder->holder.host, holder->holder.pid,
        holder->size, launch ? ", launch " : "", holder->identity);
}

/* What is said of a claim whose holder can't be named. */
static int unreadable(const ddstore__dir *dir, const char *file, const char *why,
                      ddstore_error *err)
{
    return ddstore__fail(err, DDSTORE_ECONFLICT,
                         "the claim %s/%s %s: remove it if no such group runs",
                         ddstore__dir_path(dir), file, why);
}

/* 1 lives, 0 dead, -1 can't tell without watching the counter. */
static int judge_at_once(const ddstore__claim_seen *seen,
                         const ddstore__contact_probe *probe)
{
    if (seen->rc)
        return -1;
    int alive = ddstore__process_alive(&seen->image.holder);
    if (alive < 0 && probe && probe->alive && seen->image.contact_bytes)
        alive = probe->alive(seen->image.contact, seen->image.contact_bytes);
    return alive;
}

static bool same_claim(const ddstore__claim_seen *a, const ddstore__claim_seen *b)
{
    return memcmp(a->mark, b->mark, 16) == 0;
}

/* Watches a claim that nothing else tells about. 0: it stood still; 1: it moved, or
 * another stands there or none (look again); else the wait ended. */
static int watch_counter(ddstore__dir *dir, const char *file,
                         const ddstore__claim_seen *old, const ddstore__wait *wait,
                         ddstore_error *err)
{
    int64_t until = ddstore__now_ns() + ddstore__claim_still_ns;
    int64_t next = 0;
    while (ddstore__now_ns() < until) {
        int rc = ddstore__wait_check(wait, err);
        if (rc)
            return rc;
        ddstore__sleep_ns(20 * DDSTORE__MS);
        if (ddstore__now_ns() < next)
            continue;
        next = ddstore__now_ns() + ddstore__claim_still_ns / 40;
        ddstore__claim_seen now;
        rc = ddstore__claim_look(dir, file, &now, NULL);
        bool moved = rc || !same_claim(old, &now) || now.rc != old->rc ||
                     (!now.rc && (!now.image.counter_valid ||
                                  now.image.counter != old->image.counter));
        ddstore__claim_seen_free(&now);
        if (moved)
            return 1;
    }
    return 0;
}

static int watch(ddstore__dir *dir, const char *file, ddstore__claim_seen *seen,
                 const ddstore__wait *wait, ddstore_error *err)
{
    if (seen->rc)
        ddstore__log(DDSTORE_LOG_INFO, "watching the damaged claim %s/%s for %.0f s",
                     ddstore__dir_path(dir), file,
                     (double)ddstore__claim_still_ns / 1e9);
    else
        ddstore__log(DDSTORE_LOG_INFO,
                     "watching for %.0f s whether %s:%u, which holds %s/%s, lives",
                     (double)ddstore__claim_still_ns / 1e9, seen->image.holder.host,
                     seen->image.holder.pid, ddstore__dir_path(dir), file);
    int rc = watch_counter(dir, file, seen, wait, err);
    if (rc <= 0)
        return rc;
    ddstore__claim_seen now;
    rc = ddstore__claim_look(dir, file, &now, err);
    bool same = !rc && same_claim(seen, &now) && !now.rc;
    ddstore__claim_seen_free(&now);
    if (same)
        return ddstore__claim_conflict(dir, &seen->image, err);
    return rc && rc != DDSTORE_EKEY ? rc : 1;
}

int ddstore__claim_judge(ddstore__dir *dir, const char *file, const char *ns,
                         const ddstore__contact_probe *probe, const ddstore__wait *wait,
                         uint8_t mark[16], ddstore__claim_image *holder,
                         ddstore_error *err)
{
    for (int rc = 1; rc == 1;) {
        ddstore__claim_seen seen;
        rc = ddstore__claim_look(dir, file, &seen, err);
        if (rc)
            return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
        memcpy(mark, seen.mark, 16);
        *holder = seen.image;
        holder->contact = NULL;
        int alive = judge_at_once(&seen, probe);
        if (seen.rc == DDSTORE_EUNSUPPORTED)
            rc = unreadable(dir, file, "is of another version of this library", err);
        else if (!seen.rc && strcmp(seen.image.ns, ns) != 0)
            rc = unreadable(dir, file,
                            "is of a namespace that the file system can't tell "
                            "from this one",
                            err);
        else if (alive == 1)
            rc = ddstore__claim_conflict(dir, &seen.image, err);
        else
            rc = alive == 0 ? DDSTORE_OK : watch(dir, file, &seen, wait, err);
        if (rc == DDSTORE_ETIMEDOUT)
            rc = ddstore__fail(err, rc,
                               "%s/%s may be held by %s:%u, which could not be judged "
                               "in time",
                               ddstore__dir_path(dir), file, seen.image.holder.host,
                               seen.image.holder.pid);
        ddstore__claim_seen_free(&seen);
        if (rc != 1)
            return rc;
    }
    return DDSTORE_OK;
}

/* -- all claims of a directory, for extra members -- */

struct list {
    ddstore__dir *dir;
    ddstore__claim *claims;
    size_t n, room;
    int rc;
};

static bool is_claim(const char *name)
{
    const char *dot = strchr(name, '.');
    return dot && dot != name && strcmp(dot, SUFFIX) == 0;
}

static int add_claim(struct list *list, const ddstore__claim_image *image)
{
    if (list->n == list->room) {
        size_t room = list->room ? 2 * list->room : 4;
        ddstore__claim *more = realloc(list->claims, room * sizeof(*more));
        if (!more)
            return DDSTORE_ENOMEM;
        list->claims = more;
        list->room = room;
    }
    ddstore__claim *c = &list->claims[list->n];
    memset(c, 0, sizeof(*c));
    c->contact = malloc(image->contact_bytes ? image->contact_bytes : 1);
    if (!c->contact)
        return DDSTORE_ENOMEM;
    memcpy(c->contact, image->contact, image->contact_bytes);
    c->contact_bytes = image->contact_bytes;
    memcpy(c->nonce, image->nonce, 16);
    memcpy(c->ns, image->ns, sizeof(c->ns));
    memcpy(c->identity, image->identity, sizeof(c->identity));
    c->size = image->size > INT32_MAX ? INT32_MAX : (int)image->size;
    c->holder = image->holder;
    c->counter = image->counter;
    list->n++;
    return DDSTORE_OK;
}

static int visit(void *arg, const char *name)
{
    struct list *list = arg;
    ddstore__claim_seen seen;
    if (!is_claim(name) || ddstore__claim_look(list->dir, name, &seen, NULL))
        return 0; /* gone again, or not a file that this user may trust */
    int rc = seen.rc ? DDSTORE_OK : add_claim(list, &seen.image);
    ddstore__claim_seen_free(&seen);
    return rc;
}

int ddstore__claims_read(const char *path, ddstore__claim **out, size_t *n,
                         ddstore_error *err)
{
    struct list list = {0};
    *out = NULL;
    *n = 0;
    int rc = ddstore__dir_open(path, false, &list.dir, err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
    rc = ddstore__dir_scan(list.dir, visit, &list, err);
    ddstore__dir_close(list.dir);
    if (rc == DDSTORE_ENOMEM)
        rc = ddstore__fail(err, rc, "no memory for the claims in %s", path);
    if (rc) {
        ddstore__claims_free(list.claims, list.n);
        return rc;
    }
    *out = list.claims;
    *n = list.n;
    return DDSTORE_OK;
}

void ddstore__claims_free(ddstore__claim *claims, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(claims[i].contact);
    free(claims);
}

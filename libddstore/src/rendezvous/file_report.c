/* Who is missing and what else was seen in the directory, in words. */
#include "file.h"

#include <stdio.h>
#include <stdlib.h>

#define NAMED_AT_MOST   64 /* missing ranks */
#define FOREIGN_AT_MOST 3  /* other launches */
#define TEXT            700

bool ddstore__ranks_have(const ddstore__ranks *set, uint32_t rank)
{
    return rank < set->size && (set->bits[rank / 8] >> rank % 8 & 1);
}

void ddstore__ranks_add(ddstore__ranks *set, uint32_t rank)
{
    if (rank < set->size)
        set->bits[rank / 8] |= (uint8_t)(1u << rank % 8);
}

static void append(char *out, size_t bytes, const char *text)
{
    size_t used = strlen(out);
    snprintf(out + used, bytes - used, "%s", text);
}

void ddstore__ranks_missing(const ddstore__ranks *set, char *out, size_t bytes)
{
    uint32_t named = 0, more = 0;
    char text[48];
    *out = '\0';
    for (uint32_t r = 0; r < set->size; r++) {
        if (ddstore__ranks_have(set, r))
            continue;
        if (named == NAMED_AT_MOST || strlen(out) + 40 > bytes) {
            more++;
            continue;
        }
        snprintf(text, sizeof(text), "%srank %u", named++ ? ", " : "", r);
        append(out, bytes, text);
    }
    if (more) {
        snprintf(text, sizeof(text), " and %u more", more);
        append(out, bytes, text);
    }
}

/* -- a follower asks the directory who is there -- */

struct present {
    const ddstore__file *f;
    ddstore__ranks here;
};

static int note_present(void *arg, const char *text)
{
    struct present *p = arg;
    const ddstore__file *f = p->f;
    ddstore__exchange_name name;
    if (!ddstore__exchange_name_parse(text, &name))
        return 0;
    bool hello = name.type == DDSTORE__X_HELLO || name.type == DDSTORE__X_ACK;
    bool part = name.type == DDSTORE__X_PART && name.number == f->seq &&
                memcmp(name.run, f->run, 16) == 0;
    if (f->met ? part : hello)
        ddstore__ranks_add(&p->here, name.rank);
    return 0;
}

static void find_present(struct present *p)
{
    const ddstore__file *f = p->f;
    char name[DDSTORE__CLAIM_NAME];
    ddstore__claim_seen seen;
    ddstore__ranks_add(&p->here, (uint32_t)f->base.rank);
    (void)ddstore__dir_scan(f->in, note_present, p, NULL);
    if (f->met)
        return;
    ddstore__claim_name(f->ns, name);
    if (ddstore__claim_look(f->dir, name, &seen, NULL))
        return;
    if (!seen.rc && strcmp(seen.image.identity, f->identity) == 0 &&
        ddstore__process_alive(&seen.image.holder) != 0)
        ddstore__ranks_add(&p->here, 0);
    ddstore__claim_seen_free(&seen);
}

/* -- what belongs to others -- */

struct foreign {
    const ddstore__file *f;
    ddstore__dir *box;
    int found;
    char text[TEXT];
};

static int describe_file(void *arg, const char *name)
{
    struct foreign *o = arg;
    ddstore__exchange x;
    void *data;
    size_t bytes;
    char text[400];
    if (ddstore__dir_read(o->box, name, SIZE_MAX / 2, &data, &bytes, NULL))
        return 0;
    int rc = ddstore__exchange_parse(data, bytes, &x);
    free(data);
    if (rc)
        return 0;
    snprintf(text, sizeof(text), "%sfiles of another launch (%s%s%s, %s:%u)",
             o->found ? ", " : "", x.identity[0] ? "\"" : "",
             x.identity[0] ? x.identity : "without an identity",
             x.identity[0] ? "\"" : "", x.from.host, x.from.pid);
    append(o->text, sizeof(o->text), text);
    o->found++;
    return 1;
}

static int describe_box(void *arg, const char *name)
{
    struct foreign *o = arg;
    size_t n = strlen(name), ns = strlen(o->f->ns);
    if (o->found == FOREIGN_AT_MOST)
        return 1;
    if (strncmp(name, o->f->ns, ns) != 0 || name[ns] != '.' || n < 3 ||
        strcmp(name + n - 3, ".in") != 0 || strcmp(name, o->f->in->name) == 0)
        return 0;
    o->box = ddstore__dir_sub(o->f->dir, name);
    if (o->box)
        (void)ddstore__dir_scan(o->box, describe_file, o, NULL);
    ddstore__dir_close(o->box);
    return 0;
}

static void describe_claim(struct foreign *o)
{
    const ddstore__file *f = o->f;
    char name[DDSTORE__CLAIM_NAME], text[400];
    ddstore__claim_seen seen;
    ddstore__claim_name(f->ns, name);
    if (ddstore__claim_look(f->dir, name, &seen, NULL))
        return;
    bool mine = memcmp(seen.mark, f->run, 16) == 0;
    if (!seen.rc && !mine) {
        snprintf(text, sizeof(text), "%sa claim of %s:%u (%u members%s%s)",
                 o->found++ ? ", " : "", seen.image.holder.host, seen.image.holder.pid,
                 seen.image.size, seen.image.identity[0] ? ", launch " : "",
                 seen.image.identity);
        append(o->text, sizeof(o->text), text);
    }
    ddstore__claim_seen_free(&seen);
}

/* -- the sentences -- */

static void describe(ddstore__poll *p, const ddstore__ranks *here, char *missing,
                     size_t bytes, struct foreign *others)
{
    struct present present = {.f = p->f};
    uint32_t size = (uint32_t)p->f->base.size;
    others->f = p->f;
    (void)ddstore__dir_scan(p->f->dir, describe_box, others, NULL);
    describe_claim(others);
    if (!here) {
        present.here.size = size;
        present.here.bits = calloc(size / 8 + 1, 1);
        if (present.here.bits)
            find_present(&present);
        here = &present.here;
    }
    *missing = '\0';
    if (here->bits)
        ddstore__ranks_missing(here, missing, bytes);
    if (!*missing)
        snprintf(missing, bytes, "%s", p->f->base.rank ? "rank 0" : "the others");
    free(present.here.bits);
}

void ddstore__report_waiting(ddstore__poll *p, const ddstore__ranks *here)
{
    char missing[TEXT];
    struct foreign others = {0};
    describe(p, here, missing, sizeof(missing), &others);
    ddstore__log(DDSTORE_LOG_WARN,
                 "rank %d of %d has waited %.0f s in %s (namespace \"%s\") for %s%s%s",
                 p->f->base.rank, p->f->base.size,
                 (double)(ddstore__now_ns() - p->begun) / 1e9,
                 ddstore__dir_path(p->f->dir), p->f->ns, missing,
                 others.found ? "; there are " : "", others.text);
}

int ddstore__report_timeout(ddstore__poll *p, const ddstore__ranks *here,
                            ddstore_error *err)
{
    char missing[TEXT];
    struct foreign others = {0};
    describe(p, here, missing, sizeof(missing), &others);
    return ddstore__fail(
        err, DDSTORE_ETIMEDOUT,
        "rank %d of %d waited %.1f s in %s (namespace \"%s\") for %s%s%s: start the "
        "missing "
        "ranks with the same directory, namespace and size, or allow more time "
        "(DDSTORE_HANDSHAKE_TIMEOUT_S)",
        p->f->base.rank, p->f->base.size, (double)(ddstore__now_ns() - p->begun) / 1e9,
        ddstore__dir_path(p->f->dir), p->f->ns, missing,
        others.found ? "; there are " : "", others.text);
}

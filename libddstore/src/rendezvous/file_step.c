/* One collective over files: every member contributes one, rank 0 puts them together in
 * one that all others read. A contribution acknowledges the step before. */
#include "file.h"

#include <stdio.h>
#include <stdlib.h>

struct part {
    void *data; /* as read; the bytes lie within */
    const void *body;
    uint64_t bytes;
};

/* Rank 0 collecting a step, or another member waiting for its result. */
struct step {
    ddstore__file *f;
    ddstore__poll poll;
    uint32_t op;
    struct part *parts;
    ddstore__ranks here;
    int missing;
    uint32_t blind; /* where the next blind look begins */
    uint32_t asked; /* the last rank that was asked whether it lives */
    char result[DDSTORE__EXCHANGE_NAME], abort[DDSTORE__EXCHANGE_NAME];
    ddstore__file_seen seen; /* the result */
    ddstore_error *err;
};

static void step_name(const ddstore__file *f, char type, uint32_t rank,
                      char out[DDSTORE__EXCHANGE_NAME])
{
    ddstore__exchange_name name = {.type = type, .rank = rank, .number = f->seq};
    memcpy(name.run, f->run, 16);
    ddstore__exchange_name_format(&name, out);
}

static int wrong_op(struct step *s, int rank, uint32_t op)
{
    return ddstore__fail(
        s->err, DDSTORE_EINVAL,
        "rank %d calls %s where rank %d calls %s: all members must make "
        "the same calls in the same order",
        rank, op == DDSTORE__OP_BARRIER ? "barrier" : "allgather", s->f->base.rank,
        s->op == DDSTORE__OP_BARRIER ? "barrier" : "allgather");
}

/* -- rank 0 -- */

static int take_part(struct step *s, uint32_t rank, const char *text)
{
    ddstore__file *f = s->f;
    ddstore__file_seen seen;
    if (rank == 0 || rank >= s->here.size || ddstore__ranks_have(&s->here, rank))
        return DDSTORE_OK;
    int rc = ddstore__file_look(f, f->in, text, &seen, s->err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
    const ddstore__exchange *x = &seen.x;
    bool good = x->type == DDSTORE__X_PART && x->rank == rank && x->seq == f->seq &&
                x->head_bytes == 0 && memcmp(x->run, f->run, 16) == 0 &&
                memcmp(x->own, f->members[rank].own, 16) == 0;
    if (!good || x->op != s->op) {
        rc = good ? wrong_op(s, (int)rank, x->op) : DDSTORE_OK;
        free(seen.data);
        return rc;
    }
    s->parts[rank] =
        (struct part){.data = seen.data, .body = x->body, .bytes = x->body_bytes};
    ddstore__ranks_add(&s->here, rank);
    s->missing--;
    return DDSTORE_OK;
}

/* Somebody says hello who is not of this group: a living second answer for a rank. */
static int meet_intruder(struct step *s, const char *text,
                         const ddstore__exchange_name *name)
{
    ddstore__file *f = s->f;
    ddstore__file_seen seen;
    if (name->rank >= s->here.size ||
        memcmp(name->own, f->members[name->rank].own, 16) == 0)
        return DDSTORE_OK;
    int rc = ddstore__file_look(f, f->in, text, &seen, s->err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
    if (seen.x.type == DDSTORE__X_HELLO && memcmp(seen.x.own, name->own, 16) == 0 &&
        ddstore__process_alive(&seen.x.from) != 0)
        rc = ddstore__file_duplicate(f, name->rank, &f->members[name->rank].from,
                                     &seen.x.from, s->err);
    free(seen.data);
    return rc;
}

static int on_part(void *arg, const char *text)
{
    struct step *s = arg;
    ddstore__file *f = s->f;
    ddstore__exchange_name name;
    if (!ddstore__exchange_name_parse(text, &name))
        return 0;
    bool to_us = memcmp(name.run, f->run, 16) == 0;
    switch (name.type) {
    case DDSTORE__X_PART:
        return to_us && name.number == f->seq ? take_part(s, name.rank, text) : 0;
    case DDSTORE__X_HELLO:
    case DDSTORE__X_ACK:
        return meet_intruder(s, text, &name);
    case DDSTORE__X_FAILED:
        return to_us && name.rank < s->here.size &&
                       memcmp(name.own, f->members[name.rank].own, 16) == 0
                   ? ddstore__file_noted(f, text, &name, s->err)
                   : 0;
    case DDSTORE__X_REFUSED:
        return to_us ? ddstore__file_noted(f, text, &name, s->err) : 0;
    default:
        return 0;
    }
}

/* Opens a few of the missing contributions although no listing shows them. */
static int look_blindly(struct step *s)
{
    int rc = DDSTORE_OK, looks = 0;
    for (uint32_t i = 0; !rc && i < s->here.size && looks < 16; i++) {
        char text[DDSTORE__EXCHANGE_NAME];
        uint32_t rank = (s->blind + i) % s->here.size;
        if (ddstore__ranks_have(&s->here, rank))
            continue;
        step_name(s->f, DDSTORE__X_PART, rank, text);
        rc = take_part(s, rank, text);
        s->blind = rank + 1;
        looks++;
    }
    return rc;
}

/* Asks one more of those that are missing, on another host. */
static int ask_next(struct step *s)
{
    uint32_t r = s->asked;
    for (uint32_t i = 0; i < s->here.size; i++) {
        char text[DDSTORE__EXCHANGE_NAME];
        r = (r + 1) % s->here.size;
        if (r == 0 || ddstore__ranks_have(&s->here, r))
            continue;
        s->asked = r;
        ddstore_error why;
        int gone = ddstore__poll_gone(&s->poll, r, &s->f->members[r].from, &why);
        if (!gone)
            return DDSTORE_OK;
        step_name(s->f, DDSTORE__X_PART, r, text);
        int rc = take_part(s, r, text);
        if (rc || ddstore__ranks_have(&s->here, r)) /* its last word */
            return rc;
        return ddstore__fail(s->err, gone, "%s", why.message);
    }
    return DDSTORE_OK;
}

/* A member of this host that died will contribute nothing, unless it just has. */
static int watch_members(struct step *s)
{
    for (uint32_t r = 1; r < s->here.size; r++) {
        const ddstore__process *who = &s->f->members[r].from;
        char text[DDSTORE__EXCHANGE_NAME];
        if (ddstore__ranks_have(&s->here, r) || ddstore__process_alive(who) != 0)
            continue;
        step_name(s->f, DDSTORE__X_PART, r, text);
        int rc = take_part(s, r, text);
        if (rc)
            return rc;
        if (!ddstore__ranks_have(&s->here, r))
            return ddstore__fail(
                s->err, DDSTORE_EPEER,
                "rank %u (%s:%u) is gone: the group can't go on; close it", r,
                who->host, who->pid);
    }
    return ask_next(s);
}

static int gather(struct step *s)
{
    for (;;) {
        int rc = ddstore__dir_scan(s->f->in, on_part, s, s->err);
        if (rc || !s->missing)
            return rc;
        if (ddstore__poll_blind_due(&s->poll))
            rc = look_blindly(s);
        if (!rc && s->missing && ddstore__poll_watch_due(&s->poll))
            rc = watch_members(s);
        if (rc || !s->missing)
            return rc;
        if (ddstore__poll_log_due(&s->poll))
            ddstore__report_waiting(&s->poll, &s->here);
        rc = ddstore__poll_pause(&s->poll, s->err);
        if (rc == DDSTORE_ETIMEDOUT)
            return ddstore__report_timeout(&s->poll, &s->here, s->err);
        if (rc)
            return rc;
    }
}

/* Puts all parts one after the other; table is little-endian offsets, as they are
 * published. */
static int combine(struct step *s, void **data, uint8_t *table, uint64_t *total)
{
    uint64_t at = 0;
    for (uint32_t r = 0; r < s->here.size; r++) {
        ddstore__put64(table + (size_t)r * 8, at);
        if (s->parts[r].bytes > PTRDIFF_MAX - at)
            return ddstore__fail(s->err, DDSTORE_ENOMEM,
                                 "the contributions are too long");
        at += s->parts[r].bytes;
    }
    ddstore__put64(table + (size_t)s->here.size * 8, at);
    uint8_t *all = malloc(at ? at : 1);
    if (!all)
        return ddstore__fail(s->err, DDSTORE_ENOMEM,
                             "no memory for the %llu bytes of all %u members",
                             (unsigned long long)at, s->here.size);
    for (uint32_t r = 0; r < s->here.size; r++) {
        if (s->parts[r].bytes)
            memcpy(all + ddstore__get64(table + (size_t)r * 8), s->parts[r].body,
                   s->parts[r].bytes);
        free(s->parts[r].data);
        s->parts[r].data = NULL;
    }
    *data = all;
    *total = at;
    return DDSTORE_OK;
}

/* Publishes the result. What stood before it has been read by all. */
static int publish(struct step *s, const void *data, const uint8_t *table,
                   uint64_t total)
{
    ddstore__file *f = s->f;
    ddstore__exchange x;
    int rc = ddstore__hold_check(f->hold, s->err);
    if (rc || f->base.size == 1)
        return rc;
    ddstore__file_sign(f, DDSTORE__X_STEP, &x);
    x.op = s->op;
    x.head = table;
    x.head_bytes = total ? ((uint64_t)s->here.size + 1) * 8 : 0;
    x.body = data;
    x.body_bytes = total;
    rc = ddstore__file_write(f, f->out, s->result, &x, s->err);
    if (rc)
        return rc;
    ddstore__dir_remove(f->out, f->last);
    memcpy(f->last, s->result, sizeof(f->last));
    return DDSTORE_OK;
}

static int lead_step(struct step *s, const void *mine, size_t bytes, void **data,
                     uint64_t *offsets)
{
    size_t size = s->here.size;
    uint64_t total = 0;
    uint8_t *table = calloc(size + 1, 8);
    s->parts = calloc(size, sizeof(*s->parts));
    s->here.bits = calloc(size / 8 + 1, 1);
    s->missing = (int)size - 1;
    int rc =
        table && s->parts && s->here.bits
            ? DDSTORE_OK
            : ddstore__fail(s->err, DDSTORE_ENOMEM, "no memory for %zu members", size);
    if (!rc) {
        ddstore__ranks_add(&s->here, 0);
        s->parts[0] = (struct part){.body = mine, .bytes = bytes};
        rc = s->missing ? gather(s) : DDSTORE_OK;
    }
    if (!rc)
        rc = combine(s, data, table, &total);
    if (!rc)
        rc = publish(s, *data, table, total);
    for (size_t r = 0; !rc && offsets && r <= size; r++)
        offsets[r] = ddstore__get64(table + r * 8);
    for (size_t r = 0; s->parts && r < size; r++)
        free(s->parts[r].data);
    free(s->parts);
    free(s->here.bits);
    free(table);
    return rc;
}

/* -- the others -- */

static int contribute(struct step *s, const void *mine, size_t bytes)
{
    ddstore__file *f = s->f;
    ddstore__exchange x;
    ddstore__file_sign(f, DDSTORE__X_PART, &x);
    x.op = s->op;
    x.body = mine;
    x.body_bytes = bytes;
    step_name(f, DDSTORE__X_PART, x.rank, f->mine);
    return ddstore__file_write(f, f->in, f->mine, &x, s->err);
}

/* 1: s->seen holds the result. */
static int look_at_result(struct step *s, ddstore_error *err)
{
    ddstore__file *f = s->f;
    int rc = ddstore__file_look(f, f->out, s->result, &s->seen, err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
    const ddstore__exchange *x = &s->seen.x;
    if (x->type == DDSTORE__X_STEP && x->seq == f->seq && x->rank == 0 &&
        memcmp(x->run, f->run, 16) == 0 && x->op == s->op &&
        x->size == (uint32_t)f->base.size)
        return 1;
    free(s->seen.data);
    s->seen.data = NULL;
    return DDSTORE_OK;
}

static int on_result(void *arg, const char *text)
{
    struct step *s = arg;
    if (strcmp(text, s->result) == 0)
        return look_at_result(s, s->err);
    return strcmp(text, s->abort) == 0 ? ddstore__file_aborted(s->f, text, s->err) : 0;
}

/* Whether rank 0 can still publish, and whether it can see this member's contribution.
 */
static int watch_lead(struct step *s, const void *mine, size_t bytes)
{
    ddstore__file_id id;
    ddstore__file *f = s->f;
    int rc = ddstore__poll_watch(&s->poll, s->err);
    if (rc > 0) {
        rc = look_at_result(s, NULL);
        if (!rc)
            rc = ddstore__dir_scan(f->out, on_result, s, NULL);
        return rc > 0 ? rc : DDSTORE_EPEER; /* err says why */
    }
    if (!rc && ddstore__dir_identify(f->in, f->mine, &id) == DDSTORE_EKEY)
        rc = contribute(s, mine, bytes);
    return rc;
}

static int follow_step(struct step *s, const void *mine, size_t bytes)
{
    int rc = contribute(s, mine, bytes);
    while (!rc) {
        rc = ddstore__dir_scan(s->f->out, on_result, s, s->err);
        if (!rc && ddstore__poll_blind_due(&s->poll))
            rc = look_at_result(s, s->err);
        if (!rc && ddstore__poll_watch_due(&s->poll))
            rc = watch_lead(s, mine, bytes);
        if (!rc && ddstore__poll_log_due(&s->poll))
            ddstore__report_waiting(&s->poll, NULL);
        if (!rc)
            rc = ddstore__poll_pause(&s->poll, s->err);
        if (rc == DDSTORE_ETIMEDOUT && !s->f->aborted)
            return ddstore__report_timeout(&s->poll, NULL, s->err);
    }
    return rc > 0 ? DDSTORE_OK : rc;
}

/* Turns the file that was read into the caller's array. */
static int unpack(struct step *s, void **data, uint64_t *offsets)
{
    const ddstore__exchange *x = &s->seen.x;
    uint32_t size = (uint32_t)s->f->base.size;
    uint64_t *table = offsets ? offsets : malloc(((size_t)size + 1) * sizeof(*table));
    int rc = table ? ddstore__offsets_parse(x, size, table) : DDSTORE_ENOMEM;
    if (table != offsets)
        free(table);
    if (rc) {
        free(s->seen.data);
        return ddstore__fail(s->err, rc, "the result of step %llu in %s can't be used",
                             (unsigned long long)s->f->seq,
                             ddstore__dir_path(s->f->out));
    }
    memmove(s->seen.data, x->body, x->body_bytes);
    *data = s->seen.data;
    return DDSTORE_OK;
}

static int member_step(struct step *s, const void *mine, size_t bytes, void **data,
                       uint64_t *offsets)
{
    ddstore__file *f = s->f;
    int rc = follow_step(s, mine, bytes);
    if (!rc)
        rc = unpack(s, data, offsets);
    if (rc)
        return rc;
    ddstore__dir_remove(f->in, f->mine);
    f->mine[0] = '\0';
    return DDSTORE_OK;
}

int ddstore__file_step(ddstore__file *f, uint32_t op, const void *mine, size_t bytes,
                       void **data, uint64_t *offsets, ddstore_error *err)
{
    ddstore_error why = {0};
    struct step s = {
        .f = f, .op = op, .err = &why, .here.size = (uint32_t)f->base.size};
    f->seq++;
    ddstore__poll_begin(&s.poll, f, ddstore__after_s(f->timeout_s));
    step_name(f, DDSTORE__X_STEP, 0, s.result);
    step_name(f, DDSTORE__X_ABORT, 0, s.abort);
    int rc = f->base.rank == 0 ? lead_step(&s, mine, bytes, data, offsets)
                               : member_step(&s, mine, bytes, data, offsets);
    if (!rc)
        return rc;
    free(*data);
    *data = NULL;
    if (f->base.rank == 0 && f->base.size > 1)
        ddstore__file_abort(f, &why);
    else if (f->base.rank != 0 && !f->aborted)
        ddstore__file_note(f, DDSTORE__X_FAILED, f->run, &why);
    if (err)
        *err = why;
    return rc;
}

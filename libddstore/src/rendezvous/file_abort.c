/* Failures that concern the whole group: rank 0's abort, the others' notes to rank 0.
 */
#include "file.h"

#include <stdlib.h>

#define LAST_CALL                                                                      \
    (300 * DDSTORE__MS) /* for the rest of a second group to show itself */

/* A failure of one's own memory or network is to the others the loss of a member. */
static int code_for_others(int code)
{
    switch (code) {
    case DDSTORE_EINVAL:
    case DDSTORE_ECONFLICT:
    case DDSTORE_ETIMEDOUT:
        return code;
    default:
        return DDSTORE_EPEER;
    }
}

/* All that say hello now, as entries of an abort. */
struct callers {
    uint8_t *entries;
    size_t bytes, room;
};

static int add_caller(void *arg, const char *text)
{
    struct callers *c = arg;
    ddstore__exchange_name name;
    if (!ddstore__exchange_name_parse(text, &name) ||
        (name.type != DDSTORE__X_HELLO && name.type != DDSTORE__X_ACK))
        return 0;
    if (c->bytes + DDSTORE__ENTRY > c->room) {
        size_t room = c->room ? 2 * c->room : 64 * DDSTORE__ENTRY;
        uint8_t *more = realloc(c->entries, room);
        if (!more)
            return 1;
        c->entries = more;
        c->room = room;
    }
    ddstore__entry_put(c->entries + c->bytes, name.rank, name.own);
    c->bytes += DDSTORE__ENTRY;
    return 0;
}

void ddstore__file_abort(ddstore__file *f, const ddstore_error *why)
{
    uint8_t note[DDSTORE__NOTE_LONGEST];
    char text[DDSTORE__EXCHANGE_NAME];
    size_t note_bytes;
    ddstore__exchange x;
    struct callers callers = {0};
    ddstore__exchange_name name = {.type = DDSTORE__X_ABORT};
    f->aborted = true;
    if (why->code == DDSTORE_ECONFLICT)
        ddstore__sleep_ns(LAST_CALL);
    (void)ddstore__dir_scan(f->in, add_caller, &callers, NULL);
    memcpy(name.run, f->run, 16);
    ddstore__exchange_name_format(&name, text);
    ddstore__note_put(why, note, &note_bytes);
    ddstore__file_sign(f, DDSTORE__X_ABORT, &x);
    x.head = callers.entries;
    x.head_bytes = callers.bytes;
    x.body = note;
    x.body_bytes = note_bytes;
    (void)ddstore__file_write(f, f->out, text, &x, NULL); /* they have deadlines */
    free(callers.entries);
}

void ddstore__file_note(ddstore__file *f, char type, const uint8_t run[16],
                        const ddstore_error *why)
{
    uint8_t note[DDSTORE__NOTE_LONGEST];
    char text[DDSTORE__EXCHANGE_NAME];
    size_t note_bytes;
    ddstore__exchange x;
    ddstore__exchange_name name = {.type = type, .rank = (uint32_t)f->base.rank};
    memcpy(name.own, f->own, 16);
    memcpy(name.run, run, 16);
    ddstore__exchange_name_format(&name, text);
    ddstore__note_put(why, note, &note_bytes);
    ddstore__file_sign(f, type, &x);
    memcpy(x.run, run, 16);
    x.body = note;
    x.body_bytes = note_bytes;
    (void)ddstore__file_write(f, f->in, text, &x, NULL);
}

int ddstore__file_aborted(ddstore__file *f, const char *name, ddstore_error *err)
{
    ddstore__file_seen seen;
    ddstore_error why;
    int rc = ddstore__file_look(f, f->out, name, &seen, err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
    bool concerns = seen.x.type == DDSTORE__X_ABORT &&
                    ((f->met && memcmp(seen.x.run, f->run, 16) == 0) ||
                     ddstore__entries_have(&seen.x, (uint32_t)f->base.rank, f->own));
    if (concerns && ddstore__note_parse(&seen.x, &why)) {
        f->aborted = true;
        rc = ddstore__fail(err, code_for_others(why.code),
                           "rank 0 (%s:%u) ended the group: %.1500s", seen.x.from.host,
                           seen.x.from.pid, why.message);
    }
    free(seen.data);
    return rc;
}

int ddstore__file_duplicate(const ddstore__file *f, uint32_t rank,
                            const ddstore__process *a, const ddstore__process *b,
                            ddstore_error *err)
{
    return ddstore__fail(
        err, DDSTORE_ECONFLICT,
        "two processes answer for rank %u in %s (namespace \"%s\"): %s:%u "
        "and %s:%u: give each run a directory of its own, or each group a "
        "namespace, or each launch a DDSTORE_RUN_ID",
        rank, ddstore__dir_path(f->dir), f->ns, a->host, a->pid, b->host, b->pid);
}

int ddstore__file_noted(ddstore__file *f, const char *text,
                        const ddstore__exchange_name *name, ddstore_error *err)
{
    ddstore__file_seen seen;
    ddstore_error why;
    int rc = ddstore__file_look(f, f->in, text, &seen, err);
    if (rc)
        return rc == DDSTORE_EKEY ? DDSTORE_OK : rc;
    const ddstore__exchange *x = &seen.x;
    if (x->type != name->type || x->rank != name->rank ||
        memcmp(x->own, name->own, 16) != 0 || memcmp(x->run, f->run, 16) != 0 ||
        !ddstore__note_parse(x, &why))
        rc = DDSTORE_OK;
    else if (x->type == DDSTORE__X_REFUSED)
        rc = ddstore__file_duplicate(f, 0, &f->self, &x->from, err);
    else
        rc = ddstore__fail(err, code_for_others(why.code),
                           "rank %u (%s:%u) left the group: %.1500s", x->rank,
                           x->from.host, x->from.pid, why.message);
    free(seen.data);
    return rc;
}

/* Removing exchange files that nobody needs any more: those of dead runs, and one's
 * own. */
#include "file.h"

#include <stdio.h>
#include <stdlib.h>

#define TEMP_AGE (60 * DDSTORE__S) /* a temporary file that old was left behind */
#define OTHER_HOST_AGE                                                                 \
    (3600 * DDSTORE__S) /* so were files that no host's process owns */
#define NAMES_AT_MOST 100000

struct names {
    char **list;
    size_t n, room;
};

static int collect(void *arg, const char *name)
{
    struct names *names = arg;
    if (names->n == NAMES_AT_MOST)
        return 1;
    if (names->n == names->room) {
        size_t room = names->room ? 2 * names->room : 64;
        char **more = realloc(names->list, room * sizeof(*more));
        if (!more)
            return 1;
        names->list = more;
        names->room = room;
    }
    names->list[names->n] = strdup(name);
    return names->list[names->n++] ? 0 : 1;
}

static void free_names(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
}

struct clean {
    ddstore__file *f;
    int64_t now_ns;      /* by the file server's clock */
    uint8_t (*kept)[16]; /* runs that living members still work in */
    size_t n_kept;
};

static bool is_older(const struct clean *c, ddstore__dir *dir, const char *name,
                     int64_t age)
{
    ddstore__file_id id;
    return ddstore__dir_identify(dir, name, &id) == DDSTORE_OK &&
           c->now_ns - id.modified_ns > age;
}

static bool is_temp(const char *name)
{
    return strncmp(name, ".tmp.", 5) == 0;
}

/* Whether the member that wrote the file may still be there. */
static bool is_wanted(const struct clean *c, ddstore__dir *dir, const char *text)
{
    ddstore__exchange x;
    void *data;
    size_t bytes;
    int alive = -1;
    if (!ddstore__dir_read(dir, text, SIZE_MAX / 2, &data, &bytes, NULL)) {
        if (!ddstore__exchange_parse(data, bytes, &x))
            alive = ddstore__process_alive(&x.from);
        free(data);
    }
    if (alive < 0)
        return !is_older(c, dir, text, OTHER_HOST_AGE);
    return alive == 1;
}

static bool is_kept(const struct clean *c, const uint8_t run[16])
{
    for (size_t i = 0; i < c->n_kept; i++)
        if (memcmp(c->kept[i], run, 16) == 0)
            return true;
    return false;
}

static void clean_in(struct clean *c, ddstore__dir *in, const struct names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        const char *text = names->list[i];
        ddstore__exchange_name name;
        if (is_temp(text) ? is_older(c, in, text, TEMP_AGE) : false)
            ddstore__dir_remove(in, text);
        if (!ddstore__exchange_name_parse(text, &name) ||
            memcmp(name.run, c->f->run, 16) == 0)
            continue;
        if (is_wanted(c, in, text))
            memcpy(c->kept[c->n_kept++], name.run, 16);
        else
            ddstore__dir_remove(in, text);
    }
}

static void clean_out(struct clean *c, ddstore__dir *out, const struct names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        const char *text = names->list[i];
        ddstore__exchange_name name;
        bool left = is_temp(text) ? is_older(c, out, text, TEMP_AGE)
                                  : ddstore__exchange_name_parse(text, &name) &&
                                        memcmp(name.run, c->f->run, 16) != 0 &&
                                        !is_kept(c, name.run);
        if (left)
            ddstore__dir_remove(out, text);
    }
}

/* One launch's two directories. The claim is ours, so no other rank 0 publishes there;
 * but members of a run that just ended may still have to read its last result. */
static void clean_boxes(struct clean *c, ddstore__dir *in, ddstore__dir *out)
{
    struct names names = {0}, results = {0};
    (void)ddstore__dir_scan(in, collect, &names, NULL);
    (void)ddstore__dir_scan(out, collect, &results, NULL);
    c->n_kept = 0;
    c->kept = malloc((names.n + 1) * sizeof(*c->kept));
    if (c->kept) {
        clean_in(c, in, &names);
        clean_out(c, out, &results);
    }
    free(c->kept);
    c->kept = NULL;
    free_names(&names);
    free_names(&results);
}

static void clean_launch(struct clean *c, const char *in_name)
{
    char out_name[256];
    size_t stem = strlen(in_name) - strlen("in");
    snprintf(out_name, sizeof(out_name), "%.*sout", (int)stem, in_name);
    ddstore__dir *in = ddstore__dir_sub(c->f->dir, in_name);
    ddstore__dir *out = ddstore__dir_sub(c->f->dir, out_name);
    if (in && out) {
        clean_boxes(c, in, out);
        ddstore__dir_remove_self(in);
        ddstore__dir_remove_self(out);
    }
    ddstore__dir_close(in);
    ddstore__dir_close(out);
}

/* What the rest of a name of this namespace is: NS.claim.NONCE, or NS.ID.in of others.
 */
static void clean_top(struct clean *c, const char *name)
{
    ddstore__file *f = c->f;
    size_t ns = strlen(f->ns), n = strlen(name);
    if (is_temp(name) && is_older(c, f->dir, name, OTHER_HOST_AGE))
        ddstore__dir_remove(f->dir, name);
    if (strncmp(name, f->ns, ns) != 0 || name[ns] != '.')
        return;
    const char *rest = name + ns + 1;
    if (strncmp(rest, "claim.", 6) == 0 && is_older(c, f->dir, name, TEMP_AGE))
        ddstore__dir_remove(f->dir, name);
    if (strlen(rest) == 19 && strcmp(rest + 16, ".in") == 0 && n < 250 &&
        strcmp(name, f->in->name) != 0)
        clean_launch(c, name);
}

void ddstore__file_clean(ddstore__file *f)
{
    struct clean c = {.f = f};
    struct names names = {0};
    char claim[DDSTORE__CLAIM_NAME];
    ddstore__file_id id;
    ddstore__claim_name(f->ns, claim);
    if (ddstore__dir_identify(f->dir, claim, &id))
        return;
    c.now_ns = id.modified_ns;
    clean_boxes(&c, f->in, f->out);
    (void)ddstore__dir_scan(f->dir, collect, &names, NULL);
    for (size_t i = 0; i < names.n; i++)
        clean_top(&c, names.list[i]);
    free_names(&names);
}

/* -- the end of a run -- */

struct rest {
    ddstore__file *f;
    bool needed;
};

static int find_needed(void *arg, const char *text)
{
    struct rest *rest = arg;
    ddstore__exchange_name name;
    if (!ddstore__exchange_name_parse(text, &name))
        return 0;
    bool of_run = memcmp(name.run, rest->f->run, 16) == 0;
    if ((of_run && (name.type == DDSTORE__X_ACK || name.type == DDSTORE__X_PART)) ||
        (rest->f->aborted && name.type == DDSTORE__X_HELLO))
        rest->needed = true;
    return rest->needed;
}

static void remove_of_run(const ddstore__file *f, ddstore__dir *dir)
{
    struct names names = {0};
    (void)ddstore__dir_scan(dir, collect, &names, NULL);
    for (size_t i = 0; i < names.n; i++) {
        ddstore__exchange_name name;
        if (ddstore__exchange_name_parse(names.list[i], &name) &&
            memcmp(name.run, f->run, 16) == 0)
            ddstore__dir_remove(dir, names.list[i]);
    }
    free_names(&names);
}

/* A member's contribution or acknowledgement stays until it has read what rank 0
 * answered, so where none is left, all have read everything. The last one out removes
 * it; rank 0, where the others were faster. */
void ddstore__file_sweep(ddstore__file *f)
{
    struct rest rest = {.f = f};
    char claim[DDSTORE__CLAIM_NAME];
    ddstore__file_id id;
    if (!f->in || !f->out || f->base.size == 1)
        return;
    if (f->acked) {
        ddstore__claim_name(f->ns, claim);
        if (ddstore__dir_identify(f->dir, claim, &id) == DDSTORE_OK)
            return; /* rank 0 is still there, or the next run's is, which cleans up */
        (void)ddstore__dir_scan(f->in, find_needed, &rest, NULL);
        if (rest.needed)
            return;
        remove_of_run(f, f->out);
        remove_of_run(f, f->in);
    }
    ddstore__dir_remove_self(f->in);
    ddstore__dir_remove_self(f->out);
}

/* The end of a job: the directories that this node has notes of are removed, each by a
 * child that is the job's user. */
#include "spank_parts.h"

#include <slurm/spank.h>
#include <stdlib.h>
#include <string.h>

struct ending {
    const char *state;
    uint32_t job;
    uid_t uid;
};

static void take_notes(void *arg, int out)
{
    const struct ending *e = arg;
    char why[DDSTORE__SPANK_REASON];
    int state = ddstore__state_open(e->state, why);
    if (state < 0)
        (void)ddstore__lines_put(out, "error", "%s", why);
    else
        ddstore__note_take(state, e->job, e->uid, out);
}

/* One directory, as a note tells it. */
struct target {
    ddstore__spank_dir dir;
    ddstore__spank_user user;
    bool base, gid, restart; /* told */
};

static void read_groups(char *text, ddstore__spank_user *user)
{
    gid_t *groups = calloc(strlen(text) / 2 + 1, sizeof(*groups));
    char *word, *rest = text;
    uint64_t n;
    user->n_groups = 0;
    user->groups = groups;
    while (groups && (word = strsep(&rest, ",")))
        if (ddstore__lines_number(word, UINT32_MAX, &n))
            groups[user->n_groups++] = (gid_t)n;
}

static void read_target(const char *key, char *value, struct target *t)
{
    uint64_t n = 0;
    bool number = ddstore__lines_number(value, UINT32_MAX, &n);
    if (strcmp(key, "base") == 0) {
        t->dir.base = value;
        t->base = true;
    } else if (strcmp(key, "groups") == 0) {
        read_groups(value, &t->user);
    } else if (number && strcmp(key, "dir_of") == 0) {
        t->dir.job = (uint32_t)n;
    } else if (number && strcmp(key, "gid") == 0) {
        t->user.gid = (gid_t)n;
        t->gid = true;
    } else if (number && strcmp(key, "restart") == 0) {
        t->dir.restart = (uint32_t)n;
        t->restart = true;
    }
}

static void remove_target(struct target *t)
{
    const ddstore__spank_errand errand = {.what = "removing the job's directory",
                                          .work = ddstore__jobdir_remove,
                                          .arg = &t->dir,
                                          .as = &t->user};
    ddstore__spank_answer answer;
    char *key, *value;
    ddstore__child_run(&errand, 100, &answer);
    for (char *rest = answer.text; rest && ddstore__lines_next(&rest, &key, &value);)
        if (strcmp(key, "error") == 0)
            slurm_error("spank_ddstore: %s", value);
    if (answer.why[0])
        slurm_error("spank_ddstore: %s: %s", answer.why, t->dir.base);
    free(answer.text);
}

void ddstore__spank_end(const char *state_path, uint32_t job, uid_t uid)
{
    struct ending e = {.state = state_path, .job = job, .uid = uid};
    const ddstore__spank_errand errand = {
        .what = "reading the node's notes", .work = take_notes, .arg = &e};
    ddstore__spank_answer answer;
    char *key, *value;
    struct target t = {.user.uid = uid};
    ddstore__child_run(&errand, 50, &answer);
    for (char *rest = answer.text; rest && ddstore__lines_next(&rest, &key, &value);) {
        if (strcmp(key, "error") == 0)
            slurm_error("spank_ddstore: %s", value);
        read_target(key, value, &t);
        if (strcmp(key, "next") != 0)
            continue;
        if (t.base && t.gid && t.restart && t.dir.job)
            remove_target(&t);
        free((void *)t.user.groups);
        t = (struct target){.user.uid = uid};
    }
    free((void *)t.user.groups);
    if (answer.why[0])
        slurm_error("spank_ddstore: %s", answer.why);
    free(answer.text);
}

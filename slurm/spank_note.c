/* Notes in the node's state: which directory is to go when a job ends. A note is one
 * file a job, restart and directory. The batch script's is written before its restart
 * count can be known, and gets it as a last line. */
#include "spank_parts.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t hash(const char *text)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return h;
}

static char *groups_text(const ddstore__spank_user *user)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return NULL;
    for (size_t i = 0; i < user->n_groups; i++)
        fprintf(file, "%s%u", i ? "," : "", (unsigned)user->groups[i]);
    if (fclose(file) == 0)
        return text;
    free(text);
    return NULL;
}

bool ddstore__note_write(int state, const ddstore__spank_note *note, int out, char *why)
{
    char name[96], restart[48] = "", *text = NULL, *groups = groups_text(&note->user);
    if (note->restart < 0) {
        snprintf(name, sizeof(name), "job-%u-batch", note->job);
    } else {
        snprintf(name, sizeof(name), "job-%u-%" PRId64 "-%016" PRIx64, note->job,
                 note->restart, hash(note->base));
        snprintf(restart, sizeof(restart), "restart %" PRId64 "\n", note->restart);
    }
    bool done =
        groups && asprintf(&text,
                           "dir_of %u\nuid %u\ngid %u\ngroups %s\nbase "
                           "%s\n%send\n",
                           note->dir_of, (unsigned)note->user.uid,
                           (unsigned)note->user.gid, groups, note->base, restart) >= 0;
    if (!done)
        snprintf(why, DDSTORE__SPANK_REASON, "no memory for a note of the directory");
    else
        done = ddstore__state_write(state, name, text, why);
    if (done)
        done = ddstore__lines_put(out, "note", "%s", name);
    free(groups);
    free(text);
    return done;
}

bool ddstore__note_restart(int fd, uint32_t restart)
{
    return ddstore__lines_put(fd, "restart", "%u", restart) &&
           ddstore__lines_put(fd, "end", "%s", "");
}

/* Whether a note is one of this user's; it must be whole. */
static bool is_of(const char *text, uid_t uid)
{
    char wanted[32];
    snprintf(wanted, sizeof(wanted), "\nuid %u\n", (unsigned)uid);
    return ddstore__lines_whole(text) && strstr(text, wanted);
}

static void tell(char *text, int out)
{
    char *key, *value;
    while (ddstore__lines_next(&text, &key, &value))
        if (strcmp(key, "end") != 0)
            (void)ddstore__lines_put(out, key, "%s", value);
    (void)ddstore__lines_put(out, "next", "%s", "");
}

void ddstore__note_take(int state, uint32_t job, uid_t uid, int out)
{
    char prefix[32];
    int n = snprintf(prefix, sizeof(prefix), "job-%u-", job);
    DIR *all = fdopendir(state);
    for (struct dirent *e; all && (e = readdir(all));) {
        if (strncmp(e->d_name, prefix, (size_t)n) != 0)
            continue;
        char *text = ddstore__state_read(state, e->d_name);
        /* First: what is told twice could be done twice, for a later job too. */
        (void)unlinkat(state, e->d_name, 0);
        if (text && is_of(text, uid))
            tell(text, out);
        free(text);
    }
    if (all)
        closedir(all);
}

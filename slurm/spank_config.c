/* What a site and a user ask of the plugin: arguments of plugstack.conf, options of
 * srun, sbatch and salloc, and the template of a directory. */
#include "spank_parts.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE       "/run/ddstore"
#define TIMEOUT_MS  1500
#define SHORTEST_MS 10
#define LONGEST_MS  1900 /* to give a child up takes a moment more */

/* The first thing that is wrong is kept. */
#define WRONG(where, ...)                                                              \
    do {                                                                               \
        if (!(where)->wrong[0])                                                        \
            snprintf((where)->wrong, sizeof((where)->wrong), __VA_ARGS__);             \
    } while (0)

/* ---- plugstack.conf ---- */

static const char *value_of(const char *argument, const char *name)
{
    size_t n = strlen(name);
    return strncmp(argument, name, n) == 0 && argument[n] == '=' ? argument + n + 1
                                                                 : NULL;
}

/* 1, 0; -1: neither word */
static int one_of(const char *value, const char *yes, const char *no)
{
    if (strcmp(value, yes) == 0)
        return 1;
    return strcmp(value, no) == 0 ? 0 : -1;
}

/* One that fits, absolute and without control characters: it stands in lines. */
static bool is_path(const char *value)
{
    size_t n = strlen(value);
    if (value[0] != '/' || n >= DDSTORE__SPANK_PATH - DDSTORE__SPANK_NAME)
        return false;
    for (; *value; value++)
        if ((unsigned char)*value < ' ' || *value == 0x7f)
            return false;
    return true;
}

static bool read_argument(const char *argument, ddstore__spank_config *c)
{
    const char *value;
    uint64_t ms;
    int yes;
    if ((value = value_of(argument, "enable"))) {
        yes = one_of(value, "always", "opt-in");
        if (yes >= 0)
            c->always = yes;
        return yes >= 0;
    }
    if ((value = value_of(argument, "map"))) {
        yes = one_of(value, "yes", "no");
        if (yes >= 0)
            c->map = yes;
        return yes >= 0;
    }
    if ((value = value_of(argument, "timeout_ms"))) {
        if (!ddstore__lines_number(value, LONGEST_MS, &ms) || ms < SHORTEST_MS)
            return false;
        c->timeout_ms = (int)ms;
        return true;
    }
    char *into = c->dir;
    value = value_of(argument, "dir");
    if (!value) {
        into = c->state;
        value = value_of(argument, "state");
    }
    if (!value || !is_path(value))
        return false;
    snprintf(into, DDSTORE__SPANK_PATH, "%s", value);
    return true;
}

void ddstore__config_read(int argc, char **argv, ddstore__spank_config *c)
{
    memset(c, 0, sizeof(*c));
    c->map = true;
    c->timeout_ms = TIMEOUT_MS;
    snprintf(c->state, sizeof(c->state), STATE);
    for (int i = 0; i < argc; i++)
        if (!read_argument(argv[i], c))
            WRONG(c,
                  "plugstack.conf: %.100s is not enable=opt-in|always, dir=/PATH, "
                  "map=yes|no, timeout_ms=%d to %d or state=/PATH",
                  argv[i], SHORTEST_MS, LONGEST_MS);
}

/* ---- options ---- */

/* Slurm 22.05 hands on an option without argument as "" and as "(null)". */
static bool is_none(const char *argument)
{
    return !argument || !*argument || strcmp(argument, "(null)") == 0;
}

void ddstore__option_use(ddstore__spank_options *o, const char *argument)
{
    int yes = is_none(argument) ? 1 : one_of(argument, "yes", "no");
    if (yes < 0)
        WRONG(o, "--ddstore=%.100s: give yes or no", argument);
    else
        o->wish = yes ? DDSTORE__WISH_YES : DDSTORE__WISH_NO;
}

void ddstore__option_dir(ddstore__spank_options *o, const char *argument)
{
    if (is_none(argument) || !is_path(argument))
        WRONG(o,
              "--ddstore-dir=%.100s: give an absolute path of less than %d "
              "characters",
              argument ? argument : "", DDSTORE__SPANK_PATH - DDSTORE__SPANK_NAME);
    else
        snprintf(o->dir, sizeof(o->dir), "%s", argument);
}

void ddstore__option_join(ddstore__spank_options *o, const char *argument)
{
    char text[32];
    uint64_t job, step = 0;
    int n = snprintf(text, sizeof(text), "%s", argument ? argument : "");
    char *dot = strchr(text, '.');
    if (dot)
        *dot = '\0';
    o->join = (size_t)n < sizeof(text) &&
              ddstore__lines_number(text, UINT32_MAX, &job) && job > 0 &&
              (!dot || ddstore__lines_number(dot + 1, UINT32_MAX, &step));
    if (!o->join) {
        WRONG(o,
              "--ddstore-join=%.100s: give JOBID or JOBID.STEP, such as 1234 or "
              "1234.0",
              argument ? argument : "");
        return;
    }
    o->join_job = (uint32_t)job;
    o->join_step = dot ? (int64_t)step : -1;
}

/* ---- templates ---- */

/* A name that makes no path of its own; else the number. */
static void user_name(uid_t uid, char *out, size_t bytes)
{
    static char room[65536];
    struct passwd entry, *found = NULL;
    snprintf(out, bytes, "%u", (unsigned)uid);
    if (getpwuid_r(uid, &entry, room, sizeof(room), &found) || !found)
        return;
    const char *name = found->pw_name;
    if (*name && strlen(name) < bytes && !strchr(name, '/') && strcmp(name, ".") != 0 &&
        strcmp(name, "..") != 0)
        snprintf(out, bytes, "%s", name);
}

bool ddstore__config_expand(const char *template, uid_t uid, uint32_t job, char *out,
                            char *why)
{
    size_t used = 0, room = DDSTORE__SPANK_PATH - DDSTORE__SPANK_NAME;
    for (const char *p = template; *p; p++) {
        char piece[256] = {*p, '\0'};
        if (*p == '%' && *++p == 'u') {
            user_name(uid, piece, sizeof(piece));
        } else if (piece[0] == '%' && *p == 'j') {
            snprintf(piece, sizeof(piece), "%u", job);
        } else if (piece[0] == '%' && *p != '%') {
            snprintf(why, DDSTORE__SPANK_REASON,
                     "%.500s: only %%u (user), %%j (job) and %%%% are replaced",
                     template);
            return false;
        }
        size_t n = strlen(piece);
        if (used + n >= room) {
            snprintf(why, DDSTORE__SPANK_REASON, "%.500s makes too long a path",
                     template);
            return false;
        }
        memcpy(out + used, piece, n + 1);
        used += n;
    }
    while (used > 1 && out[used - 1] == '/')
        out[--used] = '\0';
    return true;
}

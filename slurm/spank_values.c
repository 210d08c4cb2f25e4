/* Whose value a variable holds. The environment of a batch script travels with srun to
 * other nodes, and with sbatch into other jobs; so DDSTORE_SPANK_SET=JOB:NODE:NAMES
 * tells which values the plugin has set. Those are set anew, or removed, by every step;
 * all others are the user's. */
#include "spank_values.h"

#include "spank_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SET   "DDSTORE_SPANK_SET"
#define ERROR "DDSTORE_SPANK_ERROR"

static const char *const names[DDSTORE__VALUES] = {"DDSTORE_HANDSHAKE_DIR",
                                                   "DDSTORE_NIC_MAP", "DDSTORE_N_CORE"};

/* "": not there, or empty, which is the same to the library. A value that is too long
 * is cut. */
static void get(spank_t spank, const char *name, char *out, size_t bytes)
{
    memset(out, 0, bytes);
    spank_err_t rc = spank_getenv(spank, name, out, (int)bytes);
    if (rc != ESPANK_SUCCESS && rc != ESPANK_NOSPACE)
        out[0] = '\0';
    else if (rc == ESPANK_NOSPACE && !out[0])
        out[0] = '?';
    out[bytes - 1] = '\0';
}

static bool is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; *p; p += *p == ',') {
        size_t here = strcspn(p, ",");
        if (here == n && strncmp(p, name, n) == 0)
            return true;
        p += here;
    }
    return false;
}

/* A script may have set another directory, though the plugin had set one for it: within
 * one job that is told by the directory's name. */
static bool is_changed(const char *set, uint32_t dir_of, const char *dir)
{
    char job[16];
    uint32_t restart;
    int n = snprintf(job, sizeof(job), "%u:", dir_of);
    if (strncmp(set, job, (size_t)n) != 0)
        return false;
    const char *slash = strrchr(dir, '/');
    return !slash || !ddstore__jobdir_parse(slash + 1, dir_of, &restart);
}

void ddstore__values_read(spank_t spank, uint32_t dir_of, ddstore__values *v)
{
    char set[512], value[DDSTORE__SPANK_PATH];
    memset(v, 0, sizeof(*v));
    get(spank, SET, set, sizeof(set));
    v->set_there = set[0] != '\0';
    const char *list = strrchr(set, ':');
    for (int i = 0; i < DDSTORE__VALUES; i++) {
        get(spank, names[i], value, sizeof(value));
        v->there[i] = value[0] != '\0';
        v->ours[i] = v->there[i] && list && is_listed(list + 1, names[i]);
        if (i == DDSTORE__VALUE_DIR && v->ours[i] && is_changed(set, dir_of, value))
            v->ours[i] = false;
    }
}

bool ddstore__values_users(const ddstore__values *v, enum ddstore__value which)
{
    return v->there[which] && !v->ours[which];
}

/* As slurmd is told it; a host may have several. */
static void node_name(char *out, size_t bytes)
{
    const char *name = getenv("SLURMD_NODENAME"); /* slurmstepd's own */
    if (name && *name) {
        snprintf(out, bytes, "%s", name);
        return;
    }
    if (gethostname(out, bytes))
        out[0] = '\0';
    out[bytes - 1] = '\0';
    out[strcspn(out, ".")] = '\0';
}

void ddstore__values_write(spank_t spank, const ddstore__values *v, uint32_t dir_of,
                           const char *const given[DDSTORE__VALUES], const char *error)
{
    char set[512], node[128];
    const char *before = "";
    node_name(node, sizeof(node));
    int used = snprintf(set, sizeof(set), "%u:%s:", dir_of, node);
    for (int i = 0; i < DDSTORE__VALUES; i++) {
        if (given[i] && spank_setenv(spank, names[i], given[i], 1) == ESPANK_SUCCESS) {
            used += snprintf(set + used, sizeof(set) - (size_t)used, "%s%s", before,
                             names[i]);
            before = ",";
        } else if (v->ours[i]) {
            (void)spank_unsetenv(spank, names[i]);
        }
    }
    if (*before)
        (void)spank_setenv(spank, SET, set, 1);
    else if (v->set_there)
        (void)spank_unsetenv(spank, SET);
    if (*error)
        (void)spank_setenv(spank, ERROR, error, 1);
    else
        (void)spank_unsetenv(spank, ERROR);
}

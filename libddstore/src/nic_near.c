/* The NIC nearest to this process: by the map that was given, else by what the machine
 * shows, where it has hardware that makes a difference. */
#include "nic_map.h"

#include <stdio.h>
#include <unistd.h>

static int parse_given(const ddstore__settings *s, ddstore_nic_map **out,
                       ddstore_error *err)
{
    int rc = ddstore_nic_map_parse(s->nic_map, out, err);
    return rc ? ddstore__wrap(err, rc, "DDSTORE_NIC_MAP, or nic_map of the store") : 0;
}

int ddstore__nic_map_check(const ddstore__settings *settings, ddstore_error *err)
{
    ddstore_nic_map *map = NULL;
    int rc = *settings->nic_map ? parse_given(settings, &map, err) : DDSTORE_OK;
    ddstore_nic_map_close(map);
    return rc;
}

/* Without such hardware hwloc isn't worth the time and memory that loading it takes. */
static bool is_fast(const char *root, const char *nic)
{
    static const char *const kinds[] = {"infiniband", "cxi"};
    char path[512];
    for (size_t i = 0; i < DDSTORE__COUNT(kinds); i++) {
        snprintf(path, sizeof(path), "%s/sys/class/net/%s/device/%s", root, nic,
                 kinds[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    snprintf(path, sizeof(path), "%s/sys/class/cxi", root);
    return strncmp(nic, "hsn", 3) == 0 && access(path, F_OK) == 0;
}

static bool repeats(const char *const *names, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (strcmp(names[i], names[at]) == 0)
            return true;
    return false;
}

/* By hwloc; where that fails, nothing tells: it's a matter of speed only. */
static void discover(const char *pattern, ddstore_nic_choice *out)
{
    ddstore_nic_map *map = NULL;
    ddstore_error err = {0};
    if (ddstore_nic_map_discover(pattern, &map, &err) ||
        ddstore_nic_map_choose(map, out, &err)) {
        *out = (ddstore_nic_choice){0};
        ddstore__log(DDSTORE_LOG_INFO,
                     "which of %s is nearest to this process can't be told: %s",
                     pattern, err.message);
    }
    ddstore_nic_map_close(map);
}

int ddstore__nic_nearest(const ddstore__settings *settings, const char *root,
                         const char *const *names, size_t n, ddstore_nic_choice *out,
                         ddstore_error *err)
{
    char pattern[DDSTORE__NIC_MAX * DDSTORE__NIC_NAME];
    size_t used = 0, fast = 0;
    *out = (ddstore_nic_choice){0};
    if (*settings->nic_map) {
        ddstore_nic_map *map = NULL;
        int rc = parse_given(settings, &map, err);
        if (!rc)
            rc = ddstore_nic_map_choose(map, out, err);
        ddstore_nic_map_close(map);
        return rc;
    }
    for (size_t i = 0; i < n && used + DDSTORE__NIC_NAME + 1 < sizeof(pattern); i++)
        if (!repeats(names, i) && is_fast(root, names[i])) {
            snprintf(out->nic, sizeof(out->nic), "%s", names[i]);
            used += (size_t)snprintf(pattern + used, sizeof(pattern) - used, "%s%s",
                                     used ? "," : "", names[i]);
            fast++;
        }
    out->near = fast == 1;
    snprintf(out->why, sizeof(out->why), "it is the only high-speed interface");
    if (fast > 1)
        discover(pattern, out);
    return DDSTORE_OK;
}

/* NIC maps from within, and the nearest NIC where it is told or can be found out. */
#ifndef DDSTORE_NIC_MAP_H
#define DDSTORE_NIC_MAP_H

#include "settings.h"

#define DDSTORE__NIC_NAME 16 /* IF_NAMESIZE, the end included */
#define DDSTORE__NIC_MAX  64
#define DDSTORE__CPU_MAX  8192 /* Linux's own limit */

typedef struct ddstore__cpus {
    uint64_t words[DDSTORE__CPU_MAX / 64];
} ddstore__cpus;

static inline void ddstore__cpus_add(ddstore__cpus *c, int cpu)
{
    c->words[cpu / 64] |= UINT64_C(1) << cpu % 64;
}
static inline bool ddstore__cpus_have(const ddstore__cpus *c, int cpu)
{
    return (c->words[cpu / 64] >> cpu % 64 & 1) != 0;
}

enum ddstore__nic_how {
    DDSTORE__NIC_GIVEN,
    DDSTORE__NIC_EXACT,
    DDSTORE__NIC_PACKAGE,
    DDSTORE__NIC_DISTANCE,
    DDSTORE__NIC_ANYWHERE
};

typedef struct ddstore__nic {
    char name[DDSTORE__NIC_NAME];
    int numa; /* -1: not known, or several */
    ddstore__cpus cpus;
} ddstore__nic;

struct ddstore_nic_map {
    size_t n;
    ddstore__nic nics[DDSTORE__NIC_MAX];
    int16_t numa[DDSTORE__CPU_MAX]; /* of CPUs in the map; -1: not known */
    uint8_t how[DDSTORE__CPU_MAX];  /* enum ddstore__nic_how */
};

/* Whether a NIC may have that name in a map: what the text form can hold. */
bool ddstore__nic_name_fits(const char *name);

/* As ddstore_nic_map_choose, for these CPUs and that local rank; logs nothing. */
void ddstore__nic_map_pick(const ddstore_nic_map *map, const ddstore__cpus *own,
                           uint64_t local_rank, ddstore_nic_choice *out);

/* This process's number among those of its launch on this host; 0 where nothing tells.
 */
uint64_t ddstore__local_rank(void);

/* -- nic_near.c -- */

/* DDSTORE_EINVAL: settings->nic_map is given and malformed. */
int ddstore__nic_map_check(const ddstore__settings *settings, ddstore_error *err);

/* The NIC for this process: by settings->nic_map, if given; else, of the n names (of
 * NICs that are up; some may repeat), the nearest that has high-speed hardware under
 * root ("" but in tests), by hwloc where there are several. out->nic "": nothing tells.
 */
int ddstore__nic_nearest(const ddstore__settings *settings, const char *root,
                         const char *const *names, size_t n, ddstore_nic_choice *out,
                         ddstore_error *err);

#endif

/* NIC maps: their text form, and the choice for one process's CPUs. */
#include "nic_map.h"

#include "wire.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const how_names[] = {"given", "exact", "package", "distance",
                                        "anywhere"};

/* ---- text to map ---- */

struct scan {
    const char *text, *at;
    ddstore_error *err;
};

static int wrong(const struct scan *s, const char *at, const char *wanted)
{
    return ddstore__fail(s->err, DDSTORE_EINVAL,
                         "the NIC map is wrong at character %zu (%s%.24s%s): %s is "
                         "wanted there, as in hsn0=0-15,64-79;hsn1=16-31",
                         (size_t)(at - s->text) + 1, *at ? "'" : "its end", at,
                         *at ? "'" : "", wanted);
}

static bool fits_in_name(char c)
{
    return c > ' ' && c != 0x7f && !strchr("=;,/", c);
}

bool ddstore__nic_name_fits(const char *name)
{
    size_t n = 0;
    while (name[n] && fits_in_name(name[n]))
        n++;
    return n > 0 && n < DDSTORE__NIC_NAME && !name[n];
}

static int read_name(struct scan *s, ddstore_nic_map *map)
{
    const char *begin = s->at;
    size_t n = 0;
    while (*s->at && fits_in_name(*s->at))
        s->at++, n++;
    if (n == 0 || n >= DDSTORE__NIC_NAME)
        return wrong(s, begin, "the name of a network interface (at most 15 bytes)");
    if (map->n == DDSTORE__NIC_MAX)
        return wrong(s, begin, "the end, since there are at most 64 interfaces,");
    ddstore__nic *nic = &map->nics[map->n];
    memcpy(nic->name, begin, n);
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->nics[i].name, nic->name) == 0)
            return wrong(s, begin, "an interface that is named only once");
    nic->numa = -1;
    map->n++;
    return DDSTORE_OK;
}

static int read_cpu(struct scan *s, int *out)
{
    const char *begin = s->at;
    int cpu = 0;
    for (; *s->at >= '0' && *s->at <= '9' && cpu < DDSTORE__CPU_MAX; s->at++)
        cpu = cpu * 10 + (*s->at - '0');
    if (s->at == begin || cpu >= DDSTORE__CPU_MAX)
        return wrong(s, begin, "the number of a CPU (0 to 8191)");
    *out = cpu;
    return DDSTORE_OK;
}

static int read_range(struct scan *s, ddstore__cpus *cpus)
{
    int first, last;
    int rc = read_cpu(s, &first);
    if (rc)
        return rc;
    last = first;
    if (*s->at == '-') {
        const char *begin = ++s->at;
        rc = read_cpu(s, &last);
        if (!rc && last < first)
            rc = wrong(s, begin, "a CPU not below the first one of its range");
    }
    for (int cpu = first; cpu <= last && !rc; cpu++)
        ddstore__cpus_add(cpus, cpu);
    return rc;
}

/* NAME=CPUS */
static int read_nic(struct scan *s, ddstore_nic_map *map)
{
    int rc = read_name(s, map);
    if (!rc && *s->at != '=')
        rc = wrong(s, s->at, "'='");
    while (!rc) {
        s->at++;
        rc = read_range(s, &map->nics[map->n - 1].cpus);
        if (*s->at != ',')
            break;
    }
    if (!rc && *s->at && *s->at != ';')
        rc = wrong(s, s->at, "',', '-', ';' or the end");
    return rc;
}

int ddstore_nic_map_parse(const char *text, ddstore_nic_map **out, ddstore_error *err)
{
    if (!text || !out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "ddstore_nic_map_parse needs a text and a place for the "
                             "map");
    struct scan s = {text, text, err};
    ddstore_nic_map *map = calloc(1, sizeof(*map));
    if (!map)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a NIC map");
    memset(map->numa, 0xff, sizeof(map->numa));
    int rc = read_nic(&s, map);
    while (!rc && *s.at) {
        s.at++;
        rc = read_nic(&s, map);
    }
    if (rc)
        free(map);
    else
        *out = map;
    return rc;
}

/* ---- map to text ---- */

/* The first CPU from `cpu` on that is in the set, or that is not; DDSTORE__CPU_MAX. */
static int next(const ddstore__cpus *cpus, int cpu, bool in)
{
    while (cpu < DDSTORE__CPU_MAX && ddstore__cpus_have(cpus, cpu) != in)
        cpu += in && cpu % 64 == 0 && !cpus->words[cpu / 64] ? 64 : 1;
    return cpu;
}

static void add_nic(ddstore__buffer *b, const ddstore__nic *nic)
{
    char piece[64];
    const char *before = nic->name;
    for (int first = next(&nic->cpus, 0, true), end; first < DDSTORE__CPU_MAX;
         first = next(&nic->cpus, end, true)) {
        end = next(&nic->cpus, first, false);
        bool leads = before == nic->name;
        int used =
            snprintf(piece, sizeof(piece), "%s%s%s%d", leads && b->bytes ? ";" : "",
                     before, leads ? "=" : "", first);
        if (end - first > 1)
            used +=
                snprintf(piece + used, sizeof(piece) - (size_t)used, "-%d", end - 1);
        ddstore__add_bytes(b, piece, (size_t)used);
        before = ",";
    }
}

int ddstore_nic_map_format(const ddstore_nic_map *map, char **text, ddstore_error *err)
{
    ddstore__buffer b = {0};
    if (!map || !text)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "ddstore_nic_map_format needs a map and a place for its "
                             "text");
    for (size_t i = 0; i < map->n; i++)
        add_nic(&b, &map->nics[i]);
    ddstore__add_bytes(&b, "", 1);
    if (b.failed) {
        free(b.data);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a NIC map's text");
    }
    *text = (char *)b.data;
    return DDSTORE_OK;
}

/* ---- one CPU ---- */

static const ddstore__nic *nic_of(const ddstore_nic_map *map, int cpu)
{
    for (size_t i = 0; i < map->n; i++)
        if (ddstore__cpus_have(&map->nics[i].cpus, cpu))
            return &map->nics[i];
    return NULL;
}

int ddstore_nic_map_cpu(const ddstore_nic_map *map, int cpu, ddstore_nic_cpu *out)
{
    if (!map || !out || cpu < 0)
        return DDSTORE_EINVAL;
    if (cpu >= DDSTORE__CPU_MAX)
        return DDSTORE_EINDEX;
    const ddstore__nic *nic = nic_of(map, cpu);
    if (!nic) {
        for (size_t i = 0; i < map->n; i++)
            if (next(&map->nics[i].cpus, cpu, true) < DDSTORE__CPU_MAX)
                return DDSTORE_EKEY;
        return DDSTORE_EINDEX;
    }
    *out = (ddstore_nic_cpu){.numa = map->numa[cpu], .nic_numa = nic->numa};
    memcpy(out->nic, nic->name, sizeof(out->nic));
    snprintf(out->how, sizeof(out->how), "%s", how_names[map->how[cpu]]);
    return DDSTORE_OK;
}

void ddstore_nic_map_close(ddstore_nic_map *map)
{
    free(map);
}

/* ---- the choice ---- */

uint64_t ddstore__local_rank(void)
{
    /* Slurm's comes last: what others start in a batch script inherits that of the
     * script. All processes of `ddstore run` are on this host. */
    static const char *const names[] = {
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "PMI_LOCAL_RANK",
        "PALS_LOCAL_RANKID",
        "PMIX_LOCAL_RANK",
        "LOCAL_RANK",
        "DDSTORE_RANK",
        "SLURM_LOCALID",
    };
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++) {
        const char *value = ddstore__environment(names[i]);
        char *end;
        if (!value || *value < '0' || *value > '9')
            continue;
        if (strcmp(names[i], "DDSTORE_RANK") == 0 &&
            !ddstore__environment("DDSTORE_RUN_ID"))
            continue; /* given by hand: it may count over several hosts */
        uint64_t rank = strtoull(value, &end, 10);
        if (!*end)
            return rank;
    }
    return 0;
}

static bool meet(const ddstore__cpus *a, const ddstore__cpus *b)
{
    for (size_t i = 0; i < DDSTORE__COUNT(a->words); i++)
        if (a->words[i] & b->words[i])
            return true;
    return false;
}

void ddstore__nic_map_pick(const ddstore_nic_map *map, const ddstore__cpus *own,
                           uint64_t local_rank, ddstore_nic_choice *out)
{
    const ddstore__nic *found[DDSTORE__NIC_MAX];
    size_t n = 0;
    *out = (ddstore_nic_choice){0};
    for (size_t i = 0; i < map->n; i++)
        if (meet(&map->nics[i].cpus, own))
            found[n++] = &map->nics[i];
    out->near = n > 0;
    for (; !out->near && n < map->n; n++)
        found[n] = &map->nics[n];
    if (n == 0)
        return; /* no map is empty */
    const ddstore__nic *nic = found[local_rank % n];
    memcpy(out->nic, nic->name, sizeof(out->nic));
    if (n == 1 && out->near)
        snprintf(out->why, sizeof(out->why), "it is near this process's CPUs");
    else
        snprintf(out->why, sizeof(out->why), "one of %zu %s, by local rank %llu", n,
                 out->near ? "near this process's CPUs" : "that take turns",
                 (unsigned long long)local_rank);
}

int ddstore_nic_map_choose(const ddstore_nic_map *map, ddstore_nic_choice *out,
                           ddstore_error *err)
{
    ddstore__cpus own = {{0}};
    if (!map || !out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "ddstore_nic_map_choose needs a map and a place for the "
                             "choice");
    /* A word of the kernel's set is a long; the set of the C library ends at 1024. */
    _Static_assert(sizeof(own) % sizeof(long) == 0, "whole words");
    cpu_set_t *set = CPU_ALLOC(DDSTORE__CPU_MAX);
    size_t bytes = CPU_ALLOC_SIZE(DDSTORE__CPU_MAX);
    if (!set)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a set of CPUs");
    int rc =
        sched_getaffinity(0, bytes, set) == 0
            ? DDSTORE_OK
            : ddstore__fail_errno(err, errno, "the CPUs of this process can't be told");
    for (int cpu = 0; cpu < DDSTORE__CPU_MAX && !rc; cpu++)
        if (CPU_ISSET_S((size_t)cpu, bytes, set))
            ddstore__cpus_add(&own, cpu);
    CPU_FREE(set);
    if (rc)
        return rc;
    ddstore__nic_map_pick(map, &own, ddstore__local_rank(), out);
    if (!out->near)
        ddstore__log(DDSTORE_LOG_WARN,
                     "none of this process's CPUs is in the NIC map: %s is taken, %s",
                     out->nic, out->why);
    return DDSTORE_OK;
}

/* The NIC map of a machine, by hwloc, which is loaded at run time. */
#include "nic_map.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>

#define LIBRARY "libhwloc.so.15" /* of all hwloc 2 */
#define PATTERN "hsn*,ib*,en*,eth*"

#define SYMBOLS(X)                                                                     \
    X(get_api_version)                                                                 \
    X(topology_init)                                                                   \
    X(topology_set_components)                                                         \
    X(topology_set_flags)                                                              \
    X(topology_set_cache_types_filter)                                                 \
    X(topology_set_io_types_filter)                                                    \
    X(topology_set_xml)                                                                \
    X(topology_load)                                                                   \
    X(topology_destroy)                                                                \
    X(get_type_depth)                                                                  \
    X(get_obj_by_depth)                                                                \
    X(distances_get)                                                                   \
    X(distances_release)                                                               \
    X(bitmap_isset)                                                                    \
    X(bitmap_next)                                                                     \
    X(bitmap_isequal)                                                                  \
    X(bitmap_isincluded)                                                               \
    X(bitmap_weight)

struct api {
/* NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define X(name) __typeof__(&hwloc_##name) name;
    SYMBOLS(X)
#undef X
};

struct look {
    struct api hwloc;
    hwloc_topology_t topology;
    hwloc_obj_t root;
    hwloc_obj_t places[DDSTORE__NIC_MAX]; /* of each NIC of map */
    struct hwloc_distances_s *latencies;  /* between NUMA nodes; nullable */
    ddstore_nic_map *map;
};

/* ---- loading ---- */

static const char *find_symbols(void *handle, struct api *api)
{
    void *symbol;
#define X(name)                                                                        \
    symbol = dlsym(handle, "hwloc_" #name);                                            \
    if (!symbol)                                                                       \
        return "hwloc_" #name;                                                         \
    memcpy(&api->name, &symbol, sizeof(symbol));
    SYMBOLS(X)
#undef X
    return NULL;
}

/* It stays loaded: opening it again only counts. */
static int load_library(struct api *api, ddstore_error *err)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "can't load hwloc, which finds the NICs' places: %s; "
                             "install it (Debian: libhwloc15) or set DDSTORE_NIC_MAP",
                             dlerror());
    const char *missing = find_symbols(handle, api);
    if (missing)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "%s is too old or no hwloc: it lacks %s", LIBRARY,
                             missing);
    unsigned version = api->get_api_version();
    if (version >> 16 != HWLOC_API_VERSION >> 16)
        return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                             "%s has interface %#x, this build is for %#x", LIBRARY,
                             version, (unsigned)HWLOC_API_VERSION);
    return DDSTORE_OK;
}

/* Drivers of accelerators are nothing to wake for this, and caches tell nothing here.
 */
static int prepare(struct look *l, ddstore_error *err)
{
    static const char *const unused[] = {"cuda", "nvml",      "opencl",
                                         "rsmi", "levelzero", "gl"};
    const char *file = ddstore__environment("HWLOC_XMLFILE");
    for (size_t i = 0; i < DDSTORE__COUNT(unused); i++)
        (void)l->hwloc.topology_set_components(
            l->topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unused[i]);
    (void)l->hwloc.topology_set_cache_types_filter(l->topology,
                                                   HWLOC_TYPE_FILTER_KEEP_NONE);
    if (l->hwloc.topology_set_flags(l->topology,
                                    HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) ||
        l->hwloc.topology_set_io_types_filter(l->topology,
                                              HWLOC_TYPE_FILTER_KEEP_IMPORTANT))
        return ddstore__fail(err, DDSTORE_ESYS,
                             "hwloc refuses to look at all CPUs and devices");
    /* hwloc reads the variable itself, but goes on without where the file is bad. */
    if (file && l->hwloc.topology_set_xml(l->topology, file))
        return ddstore__fail(err, DDSTORE_ESYS,
                             "hwloc can't read HWLOC_XMLFILE=%.500s: it is no "
                             "description of a machine, or can't be opened",
                             file);
    return DDSTORE_OK;
}

static int look_at_machine(struct look *l, ddstore_error *err)
{
    int rc = load_library(&l->hwloc, err);
    if (rc)
        return rc;
    if (l->hwloc.topology_init(&l->topology)) {
        l->topology = NULL;
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for hwloc");
    }
    rc = prepare(l, err);
    if (rc)
        return rc;
    if (l->hwloc.topology_load(l->topology))
        return ddstore__fail(err, DDSTORE_ESYS,
                             "hwloc can't describe this machine (or what "
                             "HWLOC_XMLFILE names); lstopo may tell more");
    l->root = l->hwloc.get_obj_by_depth(l->topology, 0, 0);
    unsigned n = 1;
    if (l->hwloc.distances_get(l->topology, &n, &l->latencies,
                               HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) ||
        n == 0)
        l->latencies = NULL;
    return DDSTORE_OK;
}

static void look_away(struct look *l)
{
    if (l->latencies)
        l->hwloc.distances_release(l->topology, l->latencies);
    if (l->topology)
        l->hwloc.topology_destroy(l->topology);
    ddstore_nic_map_close(l->map);
}

/* ---- NICs ---- */

static bool matches(const char *name, const char *pattern)
{
    char one[64];
    for (const char *p = pattern; *p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        if (n < sizeof(one)) {
            memcpy(one, p, n);
            one[n] = '\0';
            if (fnmatch(one, name, 0) == 0)
                return true;
        }
        p += n;
    }
    return false;
}

static bool is_pci_nic(hwloc_obj_t o)
{
    if (o->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK || !o->name)
        return false;
    while (o && !o->cpuset && o->type != HWLOC_OBJ_PCI_DEVICE)
        o = o->parent;
    return o && o->type == HWLOC_OBJ_PCI_DEVICE;
}

/* Where a device is: the first object above it that has CPUs. */
static hwloc_obj_t place_of(hwloc_obj_t o)
{
    while (o && !o->cpuset)
        o = o->parent;
    return o;
}

/* Keeps the list in order of names, hsn2 before hsn10. */
static void add_nic(struct look *l, hwloc_obj_t o)
{
    ddstore_nic_map *map = l->map;
    hwloc_obj_t place = place_of(o);
    size_t at = map->n;
    if (map->n == DDSTORE__NIC_MAX || !ddstore__nic_name_fits(o->name) || !place)
        return;
    while (at > 0 && strverscmp(map->nics[at - 1].name, o->name) > 0)
        at--;
    if (at > 0 && strcmp(map->nics[at - 1].name, o->name) == 0)
        return;
    memmove(&map->nics[at + 1], &map->nics[at], (map->n - at) * sizeof(map->nics[0]));
    memmove(&l->places[at + 1], &l->places[at], (map->n - at) * sizeof(l->places[0]));
    map->n++;
    ddstore__nic *nic = &map->nics[at];
    *nic = (ddstore__nic){.numa = -1};
    snprintf(nic->name, sizeof(nic->name), "%s", o->name);
    l->places[at] = place;
    if (l->hwloc.bitmap_weight(place->nodeset) == 1)
        nic->numa = l->hwloc.bitmap_next(place->nodeset, -1);
}

static int find_nics(struct look *l, const char *pattern, ddstore_error *err)
{
    for (hwloc_obj_t o =
             l->hwloc.get_obj_by_depth(l->topology, HWLOC_TYPE_DEPTH_OS_DEVICE, 0);
         o; o = o->next_cousin)
        if (is_pci_nic(o) && matches(o->name, pattern))
            add_nic(l, o);
    if (l->map->n)
        return DDSTORE_OK;
    return ddstore__fail(err, DDSTORE_EFABRIC,
                         "no network interface of a PCI device has a name like "
                         "%.200s: give another pattern, or set DDSTORE_NIC_MAP",
                         pattern);
}

/* ---- how near ---- */

struct nearness {
    enum ddstore__nic_how how;
    uint64_t far; /* less is nearer, for the same how */
};

/* Nobody knows where it is: it hangs at a machine of several NUMA nodes. */
static bool is_anywhere(const struct look *l, hwloc_obj_t place)
{
    return l->hwloc.bitmap_weight(l->root->nodeset) > 1 &&
           l->hwloc.bitmap_isequal(place->cpuset, l->root->cpuset);
}

static uint64_t latency(const struct look *l, int a, int b)
{
    const struct hwloc_distances_s *d = l->latencies;
    unsigned i = 0, j = 0, n = d ? d->nbobjs : 0;
    while (i < n && d->objs[i] && (int)d->objs[i]->os_index != a)
        i++;
    while (j < n && d->objs[j] && (int)d->objs[j]->os_index != b)
        j++;
    if (i < n && j < n && d->objs[i] && d->objs[j])
        return d->values[i * n + j];
    return a == b ? 10 : 20; /* as firmware does it */
}

static uint64_t distance(const struct look *l, hwloc_obj_t pu, hwloc_obj_t place)
{
    uint64_t best = UINT64_MAX;
    for (int a = -1; (a = l->hwloc.bitmap_next(pu->nodeset, a)) >= 0;)
        for (int b = -1; (b = l->hwloc.bitmap_next(place->nodeset, b)) >= 0;)
            if (latency(l, a, b) < best)
                best = latency(l, a, b);
    return best;
}

static hwloc_obj_t above(hwloc_obj_t o, hwloc_obj_type_t type)
{
    while (o && o->type != type)
        o = o->parent;
    return o;
}

static struct nearness how_near(const struct look *l, hwloc_obj_t pu, hwloc_obj_t place)
{
    hwloc_obj_t package = above(pu, HWLOC_OBJ_PACKAGE);
    bool anywhere = is_anywhere(l, place);
    if (!anywhere && l->hwloc.bitmap_isset(place->cpuset, pu->os_index))
        return (struct nearness){DDSTORE__NIC_EXACT,
                                 (uint64_t)l->hwloc.bitmap_weight(place->cpuset)};
    if (package && l->hwloc.bitmap_isincluded(place->cpuset, package->cpuset))
        return (struct nearness){DDSTORE__NIC_PACKAGE,
                                 anywhere ? UINT64_MAX : distance(l, pu, place)};
    if (anywhere)
        return (struct nearness){DDSTORE__NIC_ANYWHERE, 0};
    return (struct nearness){DDSTORE__NIC_DISTANCE, distance(l, pu, place)};
}

/* The NICs nearest to a CPU, as bits. */
static uint64_t nearest(const struct look *l, hwloc_obj_t pu,
                        enum ddstore__nic_how *how)
{
    struct nearness best = {DDSTORE__NIC_ANYWHERE, UINT64_MAX};
    uint64_t which = 0;
    for (size_t i = 0; i < l->map->n; i++) {
        struct nearness it = how_near(l, pu, l->places[i]);
        bool nearer = it.how != best.how ? it.how < best.how : it.far < best.far;
        if (nearer)
            which = 0, best = it;
        if (nearer || (it.how == best.how && it.far == best.far))
            which |= UINT64_C(1) << i;
    }
    *how = best.how;
    return which;
}

/* ---- CPUs to NICs ---- */

/* CPUs for which the same NICs are nearest, in the same way. Their cores are dealt out
 * in blocks, so that neighbours share a NIC, and so do the threads of a core. */
struct tie {
    uint64_t which;
    enum ddstore__nic_how how;
    size_t cores, dealt;
    hwloc_obj_t core; /* the last one that was seen */
};

struct ties {
    struct tie *at;
    size_t n;
};

static struct tie *tie_of(struct ties *ties, uint64_t which, enum ddstore__nic_how how)
{
    for (size_t i = 0; i < ties->n; i++)
        if (ties->at[i].which == which && ties->at[i].how == how)
            return &ties->at[i];
    struct tie *all = realloc(ties->at, (ties->n + 1) * sizeof(*all));
    if (!all)
        return NULL;
    ties->at = all;
    all[ties->n] = (struct tie){.which = which, .how = how};
    return &all[ties->n++];
}

/* Whether a CPU begins another core than the last one of its tie. */
static bool begins_core(struct tie *tie, hwloc_obj_t pu)
{
    hwloc_obj_t core = above(pu, HWLOC_OBJ_CORE);
    core = core ? core : pu;
    bool other = core != tie->core;
    tie->core = core;
    return other;
}

static size_t bit_number(uint64_t bits, size_t n)
{
    for (; n > 0; n--)
        bits &= bits - 1;
    return (size_t)__builtin_ctzll(bits);
}

static void deal(struct look *l, hwloc_obj_t pu, struct tie *tie)
{
    tie->dealt += begins_core(tie, pu);
    size_t nics = (size_t)__builtin_popcountll(tie->which);
    size_t number = (tie->dealt - 1) * nics / tie->cores;
    ddstore__cpus_add(&l->map->nics[bit_number(tie->which, number)].cpus,
                      (int)pu->os_index);
    l->map->how[pu->os_index] = (uint8_t)tie->how;
    l->map->numa[pu->os_index] = (int16_t)l->hwloc.bitmap_next(pu->nodeset, -1);
}

/* One round over all CPUs; false: no memory. */
static bool go_round(struct look *l, struct ties *ties, bool count)
{
    int depth = l->hwloc.get_type_depth(l->topology, HWLOC_OBJ_PU);
    for (size_t i = 0; i < ties->n; i++)
        ties->at[i].core = NULL;
    for (hwloc_obj_t pu = l->hwloc.get_obj_by_depth(l->topology, depth, 0); pu;
         pu = pu->next_cousin) {
        if (pu->os_index >= DDSTORE__CPU_MAX)
            continue;
        enum ddstore__nic_how how;
        uint64_t which = nearest(l, pu, &how);
        struct tie *tie = tie_of(ties, which, how);
        if (!tie)
            return false;
        if (count)
            tie->cores += begins_core(tie, pu);
        else if (tie->cores) /* it has been counted */
            deal(l, pu, tie);
    }
    return true;
}

/* First counts the cores of each tie, then deals them out. */
static int assign(struct look *l, ddstore_error *err)
{
    struct ties ties = {0};
    bool done = go_round(l, &ties, true) && go_round(l, &ties, false);
    free(ties.at);
    if (!done)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a NIC map");
    return DDSTORE_OK;
}

int ddstore_nic_map_discover(const char *pattern, ddstore_nic_map **out,
                             ddstore_error *err)
{
    struct look l = {0};
    if (!out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "ddstore_nic_map_discover needs a place for the map");
    l.map = calloc(1, sizeof(*l.map));
    int rc = l.map ? look_at_machine(&l, err)
                   : ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a NIC map");
    if (!rc)
        rc = find_nics(&l, pattern && *pattern ? pattern : PATTERN, err);
    if (!rc)
        rc = assign(&l, err);
    if (!rc) {
        *out = l.map;
        l.map = NULL;
    }
    look_away(&l);
    return rc;
}

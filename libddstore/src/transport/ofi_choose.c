/* Chooses libfabric's provider and interface, and says why the others were dropped. */
#include "ofi_internal.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Providers of RDMA hardware, best first; and how the host shows that hardware. */
static const struct hardware {
    const char *provider, *dir, *prefix;
} hardware[] = {
    {"cxi", "/sys/class/cxi", ""},         {"verbs", "/sys/class/infiniband", ""},
    {"efa", "/sys/class/infiniband", ""},  {"opx", "/dev", "hfi1"},
    {"psm3", "/sys/class/infiniband", ""}, {"psm2", "/dev", "hfi1"},
};

bool ddstore__ofi_hardware(const char *root, const char *provider)
{
    for (size_t i = 0; i < DDSTORE__COUNT(hardware); i++) {
        const struct hardware *h = &hardware[i];
        char path[512];
        if (provider && strcmp(h->provider, provider) != 0)
            continue;
        snprintf(path, sizeof(path), "%s%s", root, h->dir);
        DIR *dir = opendir(path);
        bool found = false;
        for (struct dirent *e; dir && !found && (e = readdir(dir));)
            found = e->d_name[0] != '.' &&
                    strncmp(e->d_name, h->prefix, strlen(h->prefix)) == 0;
        if (dir)
            closedir(dir);
        if (found)
            return true;
    }
    return false;
}

/* ---- names ---- */

static size_t count_parts(const char *name)
{
    size_t n = 1;
    for (; *name; name++)
        n += *name == ';';
    return n;
}

static bool contains_part(const char *name, const char *part, size_t bytes)
{
    for (const char *p = name;; p++) {
        size_t here = strcspn(p, ";");
        if (here == bytes && strncmp(p, part, bytes) == 0)
            return true;
        p += here;
        if (!*p)
            return false;
    }
}

bool ddstore__ofi_name_matches(const char *name, const char *wanted)
{
    if (!strchr(wanted, ';'))
        return contains_part(name, wanted, strlen(wanted));
    if (count_parts(name) != count_parts(wanted))
        return false;
    for (const char *p = wanted;; p++) {
        size_t here = strcspn(p, ";");
        if (!contains_part(name, p, here))
            return false;
        p += here;
        if (!*p)
            return true;
    }
}

/* How well the provider fits what was asked for, less is better; -1: it was not. */
static int wanted_rank(const ddstore__settings *settings, const char *name)
{
    const char *fabric = settings->fabric;
    if (strncmp(fabric, "ofi:", 4) == 0)
        return ddstore__ofi_name_matches(name, fabric + 4) ? 0 : -1;
    if (strcmp(fabric, "auto") != 0)
        return ddstore__ofi_name_matches(name, fabric) ? 0 : -1;
    for (size_t i = 0; i < DDSTORE__COUNT(hardware); i++)
        if (ddstore__ofi_name_matches(name, hardware[i].provider) &&
            ddstore__ofi_hardware("", hardware[i].provider))
            return (int)i;
    return -1;
}

/* ---- candidates ---- */

static DDSTORE__PRINTF(2, 3) void drop(ddstore__ofi_candidate *c, const char *format,
                                       ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->why, sizeof(c->why), format, args);
    va_end(args);
}

static void judge(ddstore__ofi_candidate *c, const ddstore__settings *settings,
                  const char *nearest)
{
    const struct fi_info *info = c->info;
    const char *name = info->fabric_attr->prov_name;
    int fit = wanted_rank(settings, name);
    unsigned modes = (unsigned)info->domain_attr->mr_mode;
    if (fit < 0)
        drop(c, "not what DDSTORE_FABRIC=%s asks for", settings->fabric);
    else if (*settings->iface && !ddstore__ofi_on_iface(info, settings->iface))
        drop(c, "not on FABRIC_IFACE=%s", settings->iface);
    else if (ddstore__ofi_link_local(info))
        drop(c, "a link-local address");
    else if (info->nic && info->nic->link_attr &&
             info->nic->link_attr->state == FI_LINK_DOWN)
        drop(c, "its link is down");
    else if (modes & ~(unsigned)DDSTORE__OFI_MR_MODES ||
             info->domain_attr->mr_key_size > 8)
        drop(c,
             "its memory registration (mode %#x, keys of %zu bytes) is not supported",
             modes, info->domain_attr->mr_key_size);
    else if (info->ep_attr->max_msg_size == 0)
        drop(c, "it transfers nothing");
    c->wanted = fit >= 0;
    c->rank = fit * 10000 + (int)count_parts(name) * 1000 +
              (contains_part(name, "ofi_rxd", 7) ? 500 : 0) +
              (info->addr_format == FI_SOCKADDR_IN6 ? 100 : 0) +
              (*nearest && !ddstore__ofi_on_iface(info, nearest) ? 200 : 0);
}

static bool same(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool listed(const ddstore__ofi_choice *choice, const struct fi_info *info)
{
    for (size_t i = 0; i < choice->n; i++) {
        const struct fi_info *old = choice->all[i].info;
        if (same(old->fabric_attr->prov_name, info->fabric_attr->prov_name) &&
            same(old->domain_attr->name, info->domain_attr->name) &&
            same(old->fabric_attr->name, info->fabric_attr->name))
            return true;
    }
    return false;
}

/* Returns how many of the list are what was asked for; -1: no memory. */
static int add_list(ddstore__ofi_choice *choice, const ddstore__settings *settings,
                    struct fi_info *list)
{
    int wanted = 0;
    for (struct fi_info *i = list; i; i = i->next) {
        if (!i->fabric_attr || !i->fabric_attr->prov_name || listed(choice, i))
            continue;
        ddstore__ofi_candidate *all =
            realloc(choice->all, (choice->n + 1) * sizeof(choice->all[0]));
        if (!all)
            return -1;
        choice->all = all;
        all[choice->n] = (ddstore__ofi_candidate){.info = i};
        judge(&all[choice->n], settings, choice->nearest);
        wanted += all[choice->n++].wanted;
    }
    return wanted;
}

/* Loopback and virtual interfaces are taken only where nothing else is to be had. */
static void drop_virtual(ddstore__ofi_choice *choice, const ddstore__settings *settings)
{
    bool others = false;
    for (size_t i = 0; i < choice->n; i++)
        others |=
            !choice->all[i].why[0] && !ddstore__ofi_virtual_iface(choice->all[i].info);
    for (size_t i = 0; i < choice->n && others && !*settings->iface; i++)
        if (!choice->all[i].why[0] && ddstore__ofi_virtual_iface(choice->all[i].info))
            drop(&choice->all[i],
                 "a loopback or virtual interface, and there are others");
}

static int by_rank(const void *a, const void *b)
{
    const ddstore__ofi_candidate *x = a, *y = b;
    if (!x->why[0] != !y->why[0])
        return x->why[0] ? 1 : -1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Keeps the provider's own order among equals, which qsort need not. */
static void sort(ddstore__ofi_choice *choice)
{
    for (size_t i = 0; i < choice->n; i++)
        choice->all[i].rank = choice->all[i].rank * 64 + (int)(i < 63 ? i : 63);
    if (choice->n)
        qsort(choice->all, choice->n, sizeof(choice->all[0]), by_rank);
}

/* ---- queries ---- */

typedef struct query {
    uint64_t caps;
    enum fi_threading threading;
    bool named; /* some providers show only when asked for by name */
} query;

static int ask(const ddstore__ofi_api *api, const ddstore__settings *settings,
               const query *q, struct fi_info **out, ddstore_error *err)
{
    *out = NULL;
    bool by_name = strncmp(settings->fabric, "ofi:", 4) == 0;
    if (q->named && !by_name)
        return 0;
    struct fi_info *hints = api->dupinfo(NULL);
    if (!hints)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory to ask libfabric");
    hints->caps = FI_RMA | FI_READ | FI_REMOTE_READ | q->caps;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = DDSTORE__OFI_MR_MODES;
    hints->domain_attr->threading = q->threading;
    if (q->named)
        hints->fabric_attr->prov_name = strdup(settings->fabric + 4);
    int rc = ddstore__ofi_getinfo(api, hints, out);
    api->freeinfo(hints);
    if (rc == 0 || rc == -FI_ENODATA || rc == -FI_ENOSYS)
        return 0;
    return ddstore__fail(err, DDSTORE_EFABRIC,
                         "libfabric (%s) can't list its providers: %s", api->path,
                         api->strerror(-rc));
}

int ddstore__ofi_choose(const ddstore__settings *settings, const char *nearest,
                        const ddstore__ofi_api *api, ddstore__ofi_choice *out,
                        ddstore_error *err)
{
    static const query queries[] = {{0, FI_THREAD_SAFE, false},
                                    {0, FI_THREAD_SAFE, true},
                                    {0, FI_THREAD_COMPLETION, false},
                                    {FI_MSG, FI_THREAD_SAFE, false}};
    int wanted = 0, rc = 0;
    size_t lists = 0;
    *out = (ddstore__ofi_choice){.api = api, .nearest = nearest};
    for (size_t i = 0; i < DDSTORE__COUNT(queries) && wanted == 0 && rc == 0; i++) {
        struct fi_info *list = NULL;
        rc = ask(api, settings, &queries[i], &list, err);
        wanted = rc == 0 ? add_list(out, settings, list) : 0;
        if (list)
            out->lists[lists++] = list;
        if (wanted < 0)
            rc = ddstore__fail(err, DDSTORE_ENOMEM,
                               "no memory for libfabric's providers");
    }
    if (rc != 0) {
        ddstore__ofi_choice_free(out);
        return rc;
    }
    drop_virtual(out, settings);
    sort(out);
    return 0;
}

void ddstore__ofi_choice_free(ddstore__ofi_choice *choice)
{
    for (size_t i = 0; i < DDSTORE__COUNT(choice->lists); i++)
        if (choice->lists[i])
            choice->api->freeinfo(choice->lists[i]);
    free(choice->all);
    *choice = (ddstore__ofi_choice){.api = choice->api};
}

void ddstore__ofi_describe(const struct fi_info *info, char *out, size_t bytes)
{
    const char *domain = info->domain_attr->name, *fabric = info->fabric_attr->name;
    snprintf(out, bytes, "%.64s on %.48s (%.48s)", info->fabric_attr->prov_name,
             domain ? domain : "?", fabric ? fabric : "?");
}

/* Whether an earlier candidate that was not asked for is of the same provider. */
static bool named_before(const ddstore__ofi_choice *choice, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (!choice->all[i].wanted &&
            same(choice->all[i].info->fabric_attr->prov_name,
                 choice->all[at].info->fabric_attr->prov_name))
            return true;
    return false;
}

int ddstore__ofi_choice_report(const ddstore__ofi_choice *choice,
                               const ddstore__settings *settings, ddstore_error *err)
{
    char text[1700] = "", others[300] = "";
    size_t used = 0, used_others = 0, left_out = 0;
    for (size_t i = 0; i < choice->n; i++) {
        const ddstore__ofi_candidate *c = &choice->all[i];
        char what[192];
        ddstore__ofi_describe(c->info, what, sizeof(what));
        if (c->wanted && used + 450 < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "; %s: %s", what,
                                     c->why);
        else if (!c->wanted && !named_before(choice, i) &&
                 used_others + 70 < sizeof(others))
            used_others +=
                (size_t)snprintf(others + used_others, sizeof(others) - used_others,
                                 "%s%.64s", used_others ? ", " : "; not asked for: ",
                                 c->info->fabric_attr->prov_name);
        else
            left_out += c->wanted;
    }
    if (left_out)
        snprintf(text + used, sizeof(text) - used, "; and %zu more", left_out);
    const char *set = ddstore__environment("FI_PROVIDER");
    return ddstore__fail(
        err, DDSTORE_EFABRIC,
        "libfabric has no usable provider for DDSTORE_FABRIC=%s%s%s%s%s%s%s",
        settings->fabric, set ? " (FI_PROVIDER=" : "", set ? set : "",
        set ? " is set and hides others: unset it)" : "",
        choice->n ? "" : ": it offers none with one-sided reads", text, others);
}

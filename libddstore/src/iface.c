/* Interface choice: candidates from the kernel, ranked, each with a reason. */
#include "iface.h"

#include "nic_map.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define CANDIDATES 128

enum tier { NEAREST, ROUTED, REAL, NO_CARRIER, VIRTUAL, LOOPBACK, DROPPED };

struct candidate {
    char name[IF_NAMESIZE];
    enum tier tier;
    ddstore__address address;
    char text[INET6_ADDRSTRLEN];
    const char *why;
};

struct list {
    struct candidate at[CANDIDATES];
    size_t n;
    ddstore_nic_choice nearest; /* nic "": nothing tells, or it can't be used */
};

static bool is_virtual(const char *name)
{
    static const char *const prefixes[] = {"docker", "virbr", "br-", "veth"};
    for (size_t i = 0; i < DDSTORE__COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* hsn2 and cxi2 are two names of one interface. */
static bool same_name(const char *a, const char *b)
{
    if (strcmp(a, b) == 0)
        return true;
    return ((strncmp(a, "hsn", 3) == 0 && strncmp(b, "cxi", 3) == 0) ||
            (strncmp(a, "cxi", 3) == 0 && strncmp(b, "hsn", 3) == 0)) &&
           strcmp(a + 3, b + 3) == 0;
}

/* The interface of the default route, IPv4 first; "" where there is none. */
static void default_route(char out[IF_NAMESIZE])
{
    char line[512], name[64];
    unsigned destination, mask;
    *out = '\0';
    FILE *f = fopen("/proc/net/route", "re");
    while (f && !*out && fgets(line, sizeof(line), f))
        if (sscanf(line, "%63s %x %*x %*x %*d %*d %*d %x", name, &destination, &mask) ==
                3 &&
            destination == 0 && mask == 0)
            snprintf(out, IF_NAMESIZE, "%.*s", IF_NAMESIZE - 1, name);
    if (f)
        fclose(f);
    char dest[40], bits[8];
    f = *out ? NULL : fopen("/proc/net/ipv6_route", "re");
    while (f && !*out && fgets(line, sizeof(line), f))
        if (sscanf(line, "%32s %2s %*s %*s %*s %*s %*s %*s %*s %63s", dest, bits,
                   name) == 3 &&
            strspn(dest, "0") == 32 && strcmp(bits, "00") == 0 &&
            strcmp(name, "lo") != 0)
            snprintf(out, IF_NAMESIZE, "%.*s", IF_NAMESIZE - 1, name);
    if (f)
        fclose(f);
}

static bool take_address(const struct sockaddr *sa, ddstore__address *out, char *text)
{
    memset(out, 0, sizeof(*out));
    if (sa && sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;
        out->family = 4;
        memcpy(out->ip, &in->sin_addr, 4);
        return inet_ntop(AF_INET, &in->sin_addr, text, INET6_ADDRSTRLEN) != NULL;
    }
    if (sa && sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)sa;
        out->family = 6;
        memcpy(out->ip, &in6->sin6_addr, 16);
        return inet_ntop(AF_INET6, &in6->sin6_addr, text, INET6_ADDRSTRLEN) != NULL;
    }
    return false;
}

static bool link_local(const ddstore__address *a)
{
    return a->family == 6 ? a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80
                          : a->ip[0] == 169 && a->ip[1] == 254;
}

static void judge(struct candidate *c, const struct ifaddrs *i, const char *wanted,
                  bool hsn, const char *routed)
{
    c->tier = DROPPED;
    bool carrier = (i->ifa_flags & IFF_RUNNING) != 0;
    if (!(i->ifa_flags & IFF_UP))
        c->why = "it is down";
    else if (link_local(&c->address))
        c->why = "a link-local address can't be told to others";
    else if (*wanted && !same_name(wanted, c->name))
        c->why = "FABRIC_IFACE names another";
    else if (!*wanted && hsn && strncmp(c->name, "hsn", 3) != 0)
        c->why = "DDSTORE_FABRIC=hsn asks for hsn interfaces";
    else if (!carrier && (*wanted || is_virtual(c->name)))
        c->why = "it has no carrier";
    else if (!carrier)
        c->tier = NO_CARRIER, c->why = "no carrier: only where nothing else is up";
    else if (*wanted)
        c->tier = ROUTED, c->why = "FABRIC_IFACE names it";
    else if (i->ifa_flags & IFF_LOOPBACK)
        c->tier = LOOPBACK, c->why = "loopback: only where nothing else is up";
    else if (is_virtual(c->name))
        c->tier = VIRTUAL, c->why = "virtual: only where nothing else is up";
    else if (strcmp(c->name, routed) == 0)
        c->tier = ROUTED, c->why = "it has the default route";
    else
        c->tier = REAL, c->why = "it is up";
}

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->tier != y->tier)
        return (int)x->tier - (int)y->tier;
    if (x->address.family != y->address.family)
        return x->address.family - y->address.family;
    return strcmp(x->name, y->name);
}

static int collect(const ddstore__settings *s, struct list *list, ddstore_error *err)
{
    struct ifaddrs *all;
    char routed[IF_NAMESIZE];
    list->n = 0;
    list->nearest = (ddstore_nic_choice){0};
    if (getifaddrs(&all) != 0)
        return ddstore__fail_errno(err, errno, "network interfaces can't be listed");
    default_route(routed);
    for (struct ifaddrs *i = all; i && list->n < CANDIDATES; i = i->ifa_next) {
        struct candidate *c = &list->at[list->n];
        memset(c, 0, sizeof(*c));
        if (!take_address(i->ifa_addr, &c->address, c->text))
            continue;
        snprintf(c->name, sizeof(c->name), "%s", i->ifa_name);
        judge(c, i, s->iface, strcmp(s->fabric, "hsn") == 0, routed);
        list->n++;
    }
    freeifaddrs(all);
    qsort(list->at, list->n, sizeof(list->at[0]), by_rank);
    return DDSTORE_OK;
}

/* What nearness may choose: candidates that are up, once for each address. */
static size_t usable_names(const struct list *list, const char **names)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const struct candidate *c = &list->at[i];
        if (c->tier == ROUTED || c->tier == REAL)
            names[n++] = c->name;
    }
    return n;
}

/* Puts the interface that is nearest to this process first. The others stay behind it,
 * for peers that can't reach it. One that can't be used is told, and changes nothing.
 */
static int put_nearest_first(const ddstore__settings *s, struct list *list,
                             ddstore_error *err)
{
    const char *names[CANDIDATES], *why = "there is no such interface with an address";
    size_t n = usable_names(list, names);
    ddstore_nic_choice *nearest = &list->nearest;
    bool found = false;
    int rc = *s->iface ? ddstore__nic_map_check(s, err)
                       : ddstore__nic_nearest(s, "", names, n, nearest, err);
    if (rc || !*nearest->nic)
        return rc;
    for (size_t i = 0; i < list->n; i++) {
        struct candidate *c = &list->at[i];
        if (!same_name(nearest->nic, c->name))
            continue;
        if (c->tier == DROPPED || c->tier == NO_CARRIER) {
            why = c->why;
            continue;
        }
        c->tier = NEAREST, c->why = nearest->why;
        found = true;
    }
    if (!found) {
        ddstore__log(DDSTORE_LOG_WARN,
                     "the NIC map names %s for this process, but it can't be used "
                     "(%s): the interface is chosen as without a map",
                     nearest->nic, why);
        nearest->nic[0] = '\0';
    }
    qsort(list->at, list->n, sizeof(list->at[0]), by_rank);
    return DDSTORE_OK;
}

/* Real interfaces are taken together; virtual ones and loopback only where they lead. A
 * cable may have a carrier again in a moment, so virtual ones are taken beside it. */
static bool is_taken(const struct list *list, size_t i)
{
    enum tier first = list->at[0].tier;
    enum tier last = first <= REAL ? REAL : first == NO_CARRIER ? VIRTUAL : first;
    return list->at[i].tier != DROPPED && list->at[i].tier <= last;
}

int ddstore__iface_choose(const ddstore__settings *s, ddstore__address *out, size_t max,
                          size_t *n, char *name, bool *nearest, ddstore_error *err)
{
    struct list list;
    int rc = collect(s, &list, err);
    if (!rc)
        rc = put_nearest_first(s, &list, err);
    if (rc)
        return rc;
    *n = 0;
    *nearest = *list.nearest.nic != '\0';
    for (size_t i = 0; i < list.n && *n < max; i++)
        if (is_taken(&list, i))
            out[(*n)++] = list.at[i].address;
    if (*n && list.at[0].tier == NO_CARRIER)
        ddstore__log(DDSTORE_LOG_WARN,
                     "no network interface has a carrier; %s %s is taken all the same",
                     list.at[0].name, list.at[0].text);
    if (*n) {
        memcpy(name, list.at[0].name, IF_NAMESIZE);
        return DDSTORE_OK;
    }
    char seen[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < list.n && used < sizeof(seen) - 160; i++)
        used += (size_t)snprintf(seen + used, sizeof(seen) - used, "%s%s %s (%s)",
                                 used ? ", " : "", list.at[i].name, list.at[i].text,
                                 list.at[i].why);
    return ddstore__fail(
        err, DDSTORE_EFABRIC, "no network interface can be used%s%s: %s",
        *s->iface ? " as " : "", s->iface, used ? seen : "none has an address");
}

bool ddstore__iface_is_near(const ddstore__address *a)
{
    struct ifaddrs *all;
    bool near = false;
    char text[INET6_ADDRSTRLEN];
    if (getifaddrs(&all) != 0)
        return false;
    for (struct ifaddrs *i = all; i && !near; i = i->ifa_next) {
        ddstore__address own, mask;
        if (!take_address(i->ifa_addr, &own, text) || own.family != a->family ||
            !take_address(i->ifa_netmask, &mask, text) || mask.family != own.family)
            continue;
        near = true;
        for (int b = 0; b < (a->family == 4 ? 4 : 16); b++)
            near &= ((own.ip[b] ^ a->ip[b]) & mask.ip[b]) == 0;
    }
    freeifaddrs(all);
    return near;
}

static void add_line(ddstore__buffer *text, const char *format, ...)
    DDSTORE__PRINTF(2, 3);

static void add_line(ddstore__buffer *text, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    ddstore__add_bytes(text, line,
                       used < (int)sizeof(line) ? (size_t)used : sizeof(line) - 1);
    ddstore__add_bytes(text, "\n", 1);
}

void ddstore__iface_probe(const ddstore__settings *s, ddstore__buffer *text,
                          char nearest[IF_NAMESIZE])
{
    struct list list;
    ddstore_error why;
    *nearest = '\0';
    if (collect(s, &list, NULL))
        return;
    if (put_nearest_first(s, &list, &why))
        add_line(text, "nic map\trefused: %s", why.message);
    else
        memcpy(nearest, list.nearest.nic, IF_NAMESIZE);
    for (size_t i = 0; i < list.n; i++) {
        const struct candidate *c = &list.at[i];
        add_line(text, "interface\t%s %s: %s, %s", c->name, c->text,
                 is_taken(&list, i) ? "taken" : "dropped", c->why);
    }
}

/* Which network interface a libfabric provider's domain stands for. */
#include "ofi_internal.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *domain_of(const struct fi_info *info)
{
    return info->domain_attr && info->domain_attr->name ? info->domain_attr->name : "";
}

/* Whether the provider's list of parts names `part`. */
static bool has_part(const struct fi_info *info, const char *part)
{
    const char *name = info->fabric_attr->prov_name ? info->fabric_attr->prov_name : "";
    size_t bytes = strlen(part);
    for (const char *p = name; *p; p += *p == ';') {
        size_t here = strcspn(p, ";");
        if (here == bytes && strncmp(p, part, bytes) == 0)
            return true;
        p += here;
    }
    return false;
}

bool ddstore__ofi_by_ip(const struct fi_info *info)
{
    return has_part(info, "tcp") || has_part(info, "sockets") ||
           has_part(info, "net") || has_part(info, "udp");
}

bool ddstore__ofi_virtual_iface(const struct fi_info *info)
{
    static const char *const prefixes[] = {"docker", "virbr", "br-", "veth"};
    const char *name = domain_of(info);
    if (!ddstore__ofi_by_ip(info))
        return false;
    if (strcmp(name, "lo") == 0)
        return true;
    for (size_t i = 0; i < DDSTORE__COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

bool ddstore__ofi_link_local(const struct fi_info *info)
{
    struct sockaddr_in6 address;
    if (info->addr_format != FI_SOCKADDR_IN6 || info->src_addrlen < sizeof(address) ||
        !info->src_addr)
        return false;
    memcpy(&address, info->src_addr, sizeof(address));
    return IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
}

/* hsnN and cxiN are two names of one interface. Returns -1 for other names. */
static long hsn_number(const char *name)
{
    if (strncmp(name, "hsn", 3) != 0 && strncmp(name, "cxi", 3) != 0)
        return -1;
    char *end;
    long number = strtol(name + 3, &end, 10);
    return end == name + 3 || *end ? -1 : number;
}

/* Kernel interfaces of an RDMA device stand in its directory in /sys. */
static bool device_has_iface(const char *device, const char *iface, bool *known)
{
    char path[512];
    if (strchr(device, '/') || strchr(iface, '/'))
        return false;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s", device);
    *known = access(path, F_OK) == 0;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/net/%s", device,
             iface);
    return access(path, F_OK) == 0;
}

bool ddstore__ofi_on_iface(const struct fi_info *info, const char *iface)
{
    char device[128];
    const char *fabric = info->fabric_attr->name ? info->fabric_attr->name : "";
    bool known = false;
    if (has_part(info, "shm"))
        return true; /* never leaves the host */
    snprintf(device, sizeof(device), "%s", domain_of(info));
    if (strcmp(device, iface) == 0 || strcmp(fabric, iface) == 0)
        return true;
    if (ddstore__ofi_by_ip(info))
        return false;
    if (hsn_number(device) >= 0)
        return hsn_number(device) == hsn_number(iface);
    if (device_has_iface(device, iface, &known))
        return true;
    device[strcspn(device, "-")] = 0; /* rdmap0s6-rdm, mlx5_0-xrc */
    if (strcmp(device, iface) == 0 ||
        (!known && device_has_iface(device, iface, &known)))
        return true;
    return !known; /* a provider that names its domain otherwise: can't be told */
}

/* Which network addresses of this host are offered to peers, and why. */
#ifndef DDSTORE_IFACE_H
#define DDSTORE_IFACE_H

#include "settings.h"
#include "wire.h"

#include <net/if.h>

/* The addresses to listen on, best first, without ports: those of FABRIC_IFACE where it
 * is set, of high-speed interfaces for DDSTORE_FABRIC=hsn, else of the one nearest to
 * this process's CPUs (by DDSTORE_NIC_MAP, or by hwloc where there is high-speed
 * hardware; then *nearest is true), then of the default route's, then of other real
 * interfaces; of docker*, virbr*, br-* and veth* only where nothing
 * else is up; loopback where nothing is. name (IF_NAMESIZE) tells the first one's
 * interface. DDSTORE_EFABRIC lists every candidate and why it was dropped. */
int ddstore__iface_choose(const ddstore__settings *s, ddstore__address *out, size_t max,
                          size_t *n, char *name, bool *nearest, ddstore_error *err);

/* Whether an address lies in a subnet of one of this host's interfaces. */
bool ddstore__iface_is_near(const ddstore__address *a);

/* Lines "interface\tNAME ADDRESS: taken or dropped, why". nearest: the interface that
 * leads because it is nearest, or "". */
void ddstore__iface_probe(const ddstore__settings *s, ddstore__buffer *text,
                          char nearest[IF_NAMESIZE]);

#endif

/* Discovery of NICs in a build without hwloc's headers. */
#include "nic_map.h"

int ddstore_nic_map_discover(const char *pattern, ddstore_nic_map **out,
                             ddstore_error *err)
{
    (void)pattern, (void)out;
    return ddstore__fail(err, DDSTORE_EUNSUPPORTED,
                         "this build can't find the NICs' places: it was built without "
                         "hwloc's headers (Debian: libhwloc-dev); set DDSTORE_NIC_MAP "
                         "instead, which needs none");
}

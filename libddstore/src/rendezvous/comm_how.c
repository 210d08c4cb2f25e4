/* What all descriptions of a group share: a name and a time-out. */
#include "rendezvous.h"

#include "../settings.h"

#include <math.h>

#define TIMEOUT_S 300 /* where even that setting is bad */

int ddstore__comm_check(const char *ns, double timeout_s, ddstore_error *err)
{
    size_t n = ns ? strlen(ns) : 0;
    if (!(timeout_s >= 0) || isinf(timeout_s))
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "the time-out must be a number of seconds, 0 for the default; "
            "it is %g",
            timeout_s);
    if (n < 1 || n > DDSTORE__NS_LONGEST || strpbrk(ns, "./"))
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "the namespace must have 1 to %d bytes and no '.' or '/'; "
                             "\"%.120s\" hasn't",
                             DDSTORE__NS_LONGEST, ns ? ns : "");
    return DDSTORE_OK;
}

/* By what can be read of the settings: a member where they are bad meets the others all
 * the same, to tell them. */
int64_t ddstore__comm_timeout_ns(double given_s)
{
    double seconds = given_s;
    if (!(seconds > 0)) {
        ddstore__settings s = {0};
        (void)ddstore__settings_load(&s, NULL, 0, NULL);
        seconds = s.handshake_timeout_s > 0 ? s.handshake_timeout_s : TIMEOUT_S;
        ddstore__settings_free(&s);
    }
    return seconds < 9e9 ? (int64_t)(seconds * 1e9) : DDSTORE__FOREVER;
}

/* The thread that serves peers' reads where the provider needs somebody to call it. */
#include "ofi_internal.h"

#include <signal.h>
#include <stdio.h>

#define WAKE_MS 1000 /* in case fi_cq_signal is lost */
#define POLL_NS (1 * DDSTORE__MS)
#define ENTRIES 16

/* Nothing is asked of this endpoint: what completes on it is only taken away. */
static ssize_t take(ddstore__ofi *ofi)
{
    struct fi_cq_entry entries[ENTRIES];
    ssize_t n = ofi->can_sleep ? fi_cq_sread(ofi->cq, entries, ENTRIES, NULL, WAKE_MS)
                               : fi_cq_read(ofi->cq, entries, ENTRIES);
    if (n == -FI_EAVAIL) {
        ddstore__ofi_cq_error failed = {0};
        (void)fi_cq_readerr(ofi->cq, &failed.entry, 0);
        ddstore__log_later(DDSTORE_LOG_DEBUG, "%s: serving a read failed: %s",
                           ofi->provider, ofi->api->strerror(failed.entry.err));
    }
    return n;
}

static void *serve(void *arg)
{
    ddstore__ofi *ofi = arg;
    while (!atomic_load(&ofi->stop)) {
        ssize_t n = take(ofi);
        bool fine = n >= 0 || n == -FI_EAGAIN || n == -FI_EINTR || n == -FI_ECANCELED ||
                    n == -FI_ETIMEDOUT || n == -FI_EAVAIL;
        if (!fine)
            ddstore__log_later(DDSTORE_LOG_DEBUG, "%s: can't serve reads: %s",
                               ofi->provider, ofi->api->strerror((int)-n));
        if (!fine)
            ddstore__sleep_ns(100 * DDSTORE__MS);
        else if (!ofi->can_sleep && n <= 0)
            ddstore__sleep_ns(POLL_NS);
    }
    return NULL;
}

int ddstore__ofi_server_start(ddstore__ofi *ofi, ddstore_error *err)
{
    const struct fi_domain_attr *attr = ofi->info->domain_attr;
    if (!ofi->can_sleep && attr->data_progress == FI_PROGRESS_AUTO &&
        attr->control_progress == FI_PROGRESS_AUTO)
        return 0; /* hardware serves, and there is nothing to sleep on */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&ofi->server, NULL, serve, ofi);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return ddstore__fail_errno(err, rc, "can't start a thread that serves reads");
    (void)pthread_setname_np(ofi->server, "ddstore-ofi");
    ofi->has_server = true;
    return 0;
}

void ddstore__ofi_server_stop(ddstore__ofi *ofi)
{
    if (!ofi->has_server)
        return;
    atomic_store(&ofi->stop, 1);
    if (ofi->can_sleep)
        (void)fi_cq_signal(ofi->cq);
    pthread_join(ofi->server, NULL);
    ofi->has_server = false;
}

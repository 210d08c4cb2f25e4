/* The reference for path 2: rows read by bare fi_read, with no line of the library in
 * it. */
#include "fi_read_raw.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 64
#define KEY   0x5eed

typedef struct objects {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    bool can_sleep; /* shm's queues can't be slept on */
} objects;

/* What the server writes and the client reads. */
typedef struct publication {
    uint64_t base, key, name_bytes;
    uint8_t name[128];
} publication;

struct raw_fi_client {
    objects o;
    fi_addr_t server;
    publication where;
    size_t room;                  /* reads the queues take */
    struct fi_context2 *contexts; /* one a read in flight */
    size_t *free;                 /* those that are free */
};

static void objects_close(objects *o)
{
    if (o->ep)
        fi_close(&o->ep->fid);
    if (o->cq)
        fi_close(&o->cq->fid);
    if (o->av)
        fi_close(&o->av->fid);
    if (o->domain)
        fi_close(&o->domain->fid);
    if (o->fabric)
        fi_close(&o->fabric->fid);
    if (o->info)
        fi_freeinfo(o->info);
}

static int get_info(const char *provider, struct fi_info **out)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return -FI_ENOMEM;
    hints->caps = FI_RMA | FI_READ | FI_REMOTE_READ;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup(provider);
    int rc = fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, out);
    fi_freeinfo(hints);
    return rc;
}

static int objects_open(const char *provider, objects *o)
{
    memset(o, 0, sizeof(*o));
    int rc = get_info(provider, &o->info);
    if (rc != 0)
        return rc;
    o->can_sleep = strcmp(provider, "shm") != 0;
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq = {.size = o->info->tx_attr->size,
                            .format = FI_CQ_FORMAT_CONTEXT,
                            .wait_obj = o->can_sleep ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
    if ((rc = fi_fabric(o->info->fabric_attr, &o->fabric, NULL)) ||
        (rc = fi_domain(o->fabric, o->info, &o->domain, NULL)) ||
        (rc = fi_av_open(o->domain, &av, &o->av, NULL)) ||
        (rc = fi_cq_open(o->domain, &cq, &o->cq, NULL)) ||
        (rc = fi_endpoint(o->domain, o->info, &o->ep, NULL)) ||
        (rc = fi_ep_bind(o->ep, &o->av->fid, 0)) ||
        (rc = fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV)) ||
        (rc = fi_enable(o->ep)))
        objects_close(o);
    return rc;
}

int raw_fi_serve(const char *provider, void *base, size_t bytes, int publish_fd,
                 bool spin, const atomic_int *stop)
{
    objects o;
    struct fid_mr *mr = NULL;
    publication p = {.name_bytes = sizeof(p.name)};
    int rc = objects_open(provider, &o);
    if (rc != 0)
        return rc;
    rc = fi_mr_reg(o.domain, base, bytes, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL);
    size_t name_bytes = sizeof(p.name);
    if (rc == 0)
        rc = fi_getname(&o.ep->fid, p.name, &name_bytes);
    if (rc == 0) {
        p.name_bytes = name_bytes;
        p.base = o.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)base : 0;
        p.key = fi_mr_key(mr);
        rc = write(publish_fd, &p, sizeof(p)) == sizeof(p) ? 0 : -FI_EIO;
    }
    while (rc == 0 && !atomic_load_explicit(stop, memory_order_relaxed)) {
        struct fi_cq_entry entry;
        if (spin || !o.can_sleep)
            (void)fi_cq_read(o.cq, &entry, 1);
        else
            (void)fi_cq_sread(o.cq, &entry, 1, NULL, 1000);
    }
    if (mr)
        fi_close(&mr->fid);
    objects_close(&o);
    return rc;
}

int raw_fi_open(const char *provider, int fd, raw_fi_client **out)
{
    raw_fi_client *c = calloc(1, sizeof(*c));
    if (!c)
        return -FI_ENOMEM;
    int rc = read(fd, &c->where, sizeof(c->where)) == sizeof(c->where)
                 ? objects_open(provider, &c->o)
                 : -FI_EIO;
    if (rc == 0 && fi_av_insert(c->o.av, c->where.name, 1, &c->server, 0, NULL) != 1)
        rc = -FI_EINVAL;
    if (rc == 0) {
        c->room = c->o.info->tx_attr->size;
        c->contexts = calloc(c->room, sizeof(*c->contexts));
        c->free = calloc(c->room, sizeof(*c->free));
        rc = c->contexts && c->free ? 0 : -FI_ENOMEM;
    }
    if (rc != 0) {
        raw_fi_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void raw_fi_close(raw_fi_client *client)
{
    if (!client)
        return;
    objects_close(&client->o);
    free(client->contexts);
    free(client->free);
    free(client);
}

/* Takes what has completed. Returns how many reads, or a negative code. */
static ssize_t take(raw_fi_client *c, size_t *n_free, bool spin)
{
    struct fi_cq_entry entries[BATCH];
    ssize_t n = spin || !c->o.can_sleep
                    ? fi_cq_read(c->o.cq, entries, BATCH)
                    : fi_cq_sread(c->o.cq, entries, BATCH, NULL, 1000);
    if (n == -FI_EAGAIN || n == -FI_EINTR)
        return 0;
    if (n < 0)
        return n;
    for (ssize_t i = 0; i < n; i++)
        c->free[(*n_free)++] =
            (size_t)((struct fi_context2 *)entries[i].op_context - c->contexts);
    return n;
}

int raw_fi_read_rows(raw_fi_client *client, const uint64_t *offsets, size_t n,
                     size_t row_bytes, void *dst, size_t outstanding, bool spin)
{
    size_t window = outstanding < client->room ? outstanding : client->room;
    size_t n_free = window, posted = 0, done = 0;
    for (size_t i = 0; i < window; i++)
        client->free[i] = i;
    while (done < n) {
        bool busy = false;
        while (posted < n && n_free > 0 && !busy) {
            ssize_t rc =
                fi_read(client->o.ep, (uint8_t *)dst + posted * row_bytes, row_bytes,
                        NULL, client->server, client->where.base + offsets[posted],
                        client->where.key, &client->contexts[client->free[n_free - 1]]);
            busy = rc == -FI_EAGAIN;
            if (rc != 0 && !busy)
                return (int)rc;
            posted += !busy;
            n_free -= !busy;
        }
        /* A connection being made wakes no sleeper: poll until the first is in flight.
         */
        ssize_t got = take(client, &n_free, spin || n_free == window);
        if (got < 0)
            return (int)got;
        done += (size_t)got;
    }
    return 0;
}

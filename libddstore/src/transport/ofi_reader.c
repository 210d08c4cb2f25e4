/* Reader contexts: endpoint, completion queue and reads of one thread at a time. */
#include "ofi_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define ENTRIES 64

static int open_queue(ddstore__ofi *ofi, struct fid_domain *domain, struct fid_cq **cq)
{
    struct fi_cq_attr attr = {
        .size = ofi->depth,
        .format = FI_CQ_FORMAT_CONTEXT,
        .wait_obj = ofi->can_sleep ? FI_WAIT_UNSPEC : FI_WAIT_NONE,
    };
    int rc = fi_cq_open(domain, &attr, cq, NULL);
    if (rc != 0 && ofi->can_sleep && !ofi->ep) {
        attr.wait_obj = FI_WAIT_NONE; /* the first queue finds out for all */
        rc = fi_cq_open(domain, &attr, cq, NULL);
        ofi->can_sleep = rc != 0;
    }
    return rc;
}

int ddstore__ofi_endpoint(ddstore__ofi *ofi, const ddstore__ofi_side *side,
                          struct fid_ep **ep, struct fid_cq **cq, ddstore_error *err)
{
    const char *what = "can't open a completion queue";
    *ep = NULL;
    *cq = NULL;
    pthread_mutex_lock(&ofi->domain_lock);
    int rc = open_queue(ofi, side->domain, cq);
    if (rc == 0) {
        what = "can't open an endpoint";
        rc = fi_endpoint(side->domain, ofi->info, ep, NULL);
    }
    if (rc == 0) {
        what = "can't enable an endpoint";
        rc = fi_ep_bind(*ep, &side->av->fid, 0);
    }
    if (rc == 0)
        rc = fi_ep_bind(*ep, &(*cq)->fid, FI_TRANSMIT | FI_RECV);
    if (rc == 0)
        rc = fi_enable(*ep);
    if (rc != 0) {
        if (*ep)
            fi_close(&(*ep)->fid);
        if (*cq)
            fi_close(&(*cq)->fid);
        *ep = NULL;
        *cq = NULL;
    }
    pthread_mutex_unlock(&ofi->domain_lock);
    return rc == 0 ? 0 : ddstore__ofi_fail(ofi, err, rc, what);
}

/* ---- one reader ---- */

void ddstore__ofi_retire(ddstore__ofi *ofi, ddstore__ofi_reader *reader)
{
    pthread_mutex_lock(&ofi->domain_lock);
    if (reader->ep)
        fi_close(&reader->ep->fid);
    if (reader->cq)
        fi_close(&reader->cq->fid);
    if (reader->bounce_mr)
        fi_close(&reader->bounce_mr->fid);
    if (reader->call_mr)
        fi_close(&reader->call_mr->fid);
    for (size_t i = 0; i < reader->n_ops; i++)
        if (reader->ops[i].mr)
            fi_close(&reader->ops[i].mr->fid);
    pthread_mutex_unlock(&ofi->domain_lock);
    free(reader->bounce);
    free(reader->free_bounce);
    free(reader->ops);
    free(reader);
}

static int reader_open(ddstore__ofi *ofi, ddstore__ofi_reader **out, ddstore_error *err)
{
    ddstore__ofi_reader *reader = calloc(1, sizeof(*reader));
    if (reader)
        reader->ops = calloc(ofi->depth, sizeof(*reader->ops));
    if (!reader || !reader->ops) {
        free(reader);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a reader");
    }
    reader->n_ops = ofi->depth;
    for (size_t i = reader->n_ops; i-- > 0;) {
        reader->ops[i].next = reader->free_ops;
        reader->free_ops = &reader->ops[i];
    }
    int rc = ddstore__ofi_endpoint(ofi, &ofi->reading, &reader->ep, &reader->cq, err);
    if (rc != 0) {
        ddstore__ofi_retire(ofi, reader);
        return rc;
    }
    *out = reader;
    return 0;
}

ddstore__ofi_op *ddstore__ofi_op_of(ddstore__ofi_reader *reader, void *context)
{
    uintptr_t at = (uintptr_t)context, first = (uintptr_t)reader->ops;
    size_t i = (at - first) / sizeof(reader->ops[0]);
    if (at < first || i >= reader->n_ops || (at - first) % sizeof(reader->ops[0]))
        return NULL;
    return reader->ops[i].in_flight ? &reader->ops[i] : NULL;
}

void ddstore__ofi_op_done(ddstore__ofi_reader *reader, ddstore__ofi_op *op, bool copied)
{
    if (op->bounce) {
        if (copied)
            memcpy(op->dst, op->bounce, op->bytes);
        reader->free_bounce[reader->n_free_bounce++] = op->bounce;
        op->bounce = NULL;
    }
    if (op->mr) {
        fi_close(&op->mr->fid);
        op->mr = NULL;
    }
    if (op->in_flight)
        reader->in_flight--;
    op->in_flight = false;
    op->next = reader->free_ops;
    reader->free_ops = op;
}

/* ---- the pool ---- */

int ddstore__ofi_acquire(ddstore__ofi *ofi, ddstore__ofi_reader **out,
                         ddstore_error *err)
{
    if (atomic_load_explicit(&ofi->n_aside, memory_order_relaxed))
        ddstore__ofi_reap(ofi);
    pthread_mutex_lock(&ofi->pool_lock);
    ddstore__ofi_reader *reader = ofi->idle;
    if (reader)
        ofi->idle = reader->next;
    pthread_mutex_unlock(&ofi->pool_lock);
    if (!reader)
        return reader_open(ofi, out, err);
    *out = reader;
    return 0;
}

void ddstore__ofi_give_back(ddstore__ofi *ofi, ddstore__ofi_reader *reader)
{
    if (reader->in_flight == 0 && reader->call_mr) {
        fi_close(&reader->call_mr->fid);
        reader->call_mr = NULL;
    }
    pthread_mutex_lock(&ofi->pool_lock);
    ddstore__ofi_reader **list = reader->in_flight ? &ofi->aside : &ofi->idle;
    ofi->n_aside += reader->in_flight > 0;
    reader->next = *list;
    *list = reader;
    pthread_mutex_unlock(&ofi->pool_lock);
}

/* Takes what has completed of a set-aside reader; true once all its reads have ended.
 */
static bool settle(ddstore__ofi_reader *reader)
{
    struct fi_cq_entry entries[ENTRIES];
    for (size_t turns = 0; reader->in_flight && turns <= reader->n_ops; turns++) {
        ssize_t n = fi_cq_read(reader->cq, entries, ENTRIES);
        ddstore__ofi_cq_error failed = {0};
        if (n == -FI_EAVAIL && fi_cq_readerr(reader->cq, &failed.entry, 0) == 1) {
            entries[0].op_context = failed.entry.op_context;
            n = 1;
        }
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n; i++) {
            ddstore__ofi_op *op = ddstore__ofi_op_of(reader, entries[i].op_context);
            if (op)
                ddstore__ofi_op_done(reader, op, false);
        }
    }
    return reader->in_flight == 0;
}

size_t ddstore__ofi_reap(ddstore__ofi *ofi)
{
    pthread_mutex_lock(&ofi->pool_lock);
    ddstore__ofi_reader *list = ofi->aside, *next, *left = NULL, **tail = &left;
    ofi->aside = NULL;
    pthread_mutex_unlock(&ofi->pool_lock);
    size_t ended = 0;
    for (; list; list = next) {
        next = list->next;
        if (settle(list)) {
            ddstore__ofi_retire(ofi, list);
            ended++;
        } else {
            *tail = list;
            tail = &list->next;
        }
    }
    pthread_mutex_lock(&ofi->pool_lock);
    *tail = ofi->aside;
    ofi->aside = left;
    ofi->n_aside -= ended;
    pthread_mutex_unlock(&ofi->pool_lock);
    return ofi->n_aside;
}

/* Closing an endpoint ends its reads, so that nothing arrives in anybody's memory any
 * more. But libfabric 1.17's rxm over TCP crashes there with a half-received read; as
 * it moves bytes only when it is called, it is left alone instead. */
static bool crashes_in_close(const ddstore__ofi *ofi)
{
    return ddstore__ofi_name_matches(ofi->provider, "ofi_rxm") &&
           ddstore__ofi_by_ip(ofi->info);
}

size_t ddstore__ofi_close_readers(ddstore__ofi *ofi)
{
    size_t left = ddstore__ofi_reap(ofi);
    ddstore__ofi_reader *next;
    for (; ofi->idle; ofi->idle = next) {
        next = ofi->idle->next;
        ddstore__ofi_retire(ofi, ofi->idle);
    }
    if (left > 0 && crashes_in_close(ofi))
        return left;
    for (; ofi->aside; ofi->aside = next) {
        next = ofi->aside->next;
        ddstore__ofi_retire(ofi, ofi->aside);
    }
    return 0;
}

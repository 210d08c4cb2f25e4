/* Memory that libfabric reads and writes: keys, exposures, registered destinations. */
#include "ofi_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define KEY_TRIES 64

/* ---- keys ---- */

static uint64_t round_of(const uint8_t secret[16], uint64_t half, unsigned round)
{
    uint8_t in[9], out[16];
    ddstore__put64(in, half);
    in[8] = (uint8_t)round;
    ddstore__siphash128(secret, in, sizeof(in), out);
    return ddstore__get64(out);
}

/* A Feistel network over the counter: distinct keys that tell nothing about one
 * another. */
uint64_t ddstore__ofi_next_key(ddstore__ofi_keys *keys, size_t bytes)
{
    unsigned half = (unsigned)(bytes > 8 ? 8 : bytes) * 4; /* bits */
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t n = atomic_fetch_add_explicit(&keys->count, 1, memory_order_relaxed);
    uint64_t left = n >> half & mask, right = n & mask;
    for (unsigned round = 0; round < 6; round++) {
        uint64_t next = left ^ (round_of(keys->secret, right, round) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

/* ---- registration ---- */

static int register_mr(ddstore__ofi *ofi, struct fid_domain *domain, void *data,
                       uint64_t bytes, uint64_t access, struct fid_mr **out)
{
    int rc = -FI_ENOKEY;
    pthread_mutex_lock(&ofi->domain_lock);
    for (int i = 0; i < KEY_TRIES && rc == -FI_ENOKEY; i++) {
        uint64_t key = 0;
        if (!(ofi->mr_mode & FI_MR_PROV_KEY))
            key =
                ddstore__ofi_next_key(&ofi->keys, ofi->info->domain_attr->mr_key_size);
        if (key == FI_KEY_NOTAVAIL)
            continue;
        rc = fi_mr_reg(domain, data, bytes, access, 0, key, 0, out, NULL);
        if (ofi->mr_mode & FI_MR_PROV_KEY)
            break;
    }
    pthread_mutex_unlock(&ofi->domain_lock);
    return rc;
}

/* Where keys belong to an endpoint, the registration is bound to it and enabled. */
static int bind_mr(const ddstore__ofi *ofi, struct fid_mr *mr, struct fid_ep *ep)
{
    if (!(ofi->mr_mode & FI_MR_ENDPOINT))
        return 0;
    int rc = fi_mr_bind(mr, &ep->fid, 0);
    return rc == 0 ? fi_mr_enable(mr) : rc;
}

static int make_mr(ddstore__ofi *ofi, struct fid_domain *domain, struct fid_ep *ep,
                   void *data, uint64_t bytes, uint64_t access, struct fid_mr **out,
                   ddstore_error *err)
{
    *out = NULL;
    int rc = register_mr(ofi, domain, data, bytes, access, out);
    if (rc == 0 && (rc = bind_mr(ofi, *out, ep)) != 0) {
        fi_close(&(*out)->fid);
        *out = NULL;
    }
    if (rc == 0)
        return 0;
    char what[128];
    snprintf(what, sizeof(what), "can't register %llu bytes of memory",
             (unsigned long long)bytes);
    return ddstore__ofi_fail(ofi, err, rc, what);
}

int ddstore__ofi_local_mr(ddstore__ofi *ofi, struct fid_ep *ep, void *data,
                          uint64_t bytes, struct fid_mr **out, ddstore_error *err)
{
    return make_mr(ofi, ofi->reading.domain, ep, data, bytes, FI_READ, out, err);
}

int ddstore__ofi_expose(ddstore__ofi *ofi, void *base, uint64_t bytes,
                        uint64_t *remote_base, uint64_t *key, ddstore__ofi_mr **out,
                        ddstore_error *err)
{
    *out = NULL;
    *remote_base = ofi->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)base : 0;
    *key = 0;
    ddstore__ofi_mr *mr = calloc(1, sizeof(*mr));
    if (!mr)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a registration");
    mr->ofi = ofi;
    mr->generation = ofi->generation;
    if (bytes > 0) { /* nobody reads an empty one */
        int rc = make_mr(ofi, ofi->serving.domain, ofi->ep, base, bytes, FI_REMOTE_READ,
                         &mr->mr, err);
        if (rc != 0) {
            free(mr);
            return rc;
        }
    }
    if (mr->mr)
        *key = fi_mr_key(mr->mr);
    *out = mr;
    return 0;
}

void ddstore__ofi_release(ddstore__ofi_mr *mr)
{
    if (mr && mr->mr && mr->generation == ddstore__fork_generation)
        fi_close(&mr->mr->fid);
    free(mr);
}

/* ---- registered destinations ---- */

/* Index of the first range that starts after `start`. Under ranges_lock. */
static size_t first_after(const ddstore__ofi *ofi, uint64_t start)
{
    size_t low = 0, high = ofi->n_ranges;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (ofi->ranges[mid].start <= start)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Ranges may overlap; `reach`, the furthest end so far, bounds the look back. */
static void update_reach(ddstore__ofi *ofi, size_t from)
{
    for (size_t i = from; i < ofi->n_ranges; i++) {
        uint64_t before = i ? ofi->ranges[i - 1].reach : 0;
        ofi->ranges[i].reach =
            ofi->ranges[i].end > before ? ofi->ranges[i].end : before;
    }
}

static struct fid_mr *find_range(ddstore__ofi *ofi, uint64_t start, uint64_t end)
{
    struct fid_mr *mr = NULL;
    pthread_rwlock_rdlock(&ofi->ranges_lock);
    for (size_t i = first_after(ofi, start); i-- > 0 && ofi->ranges[i].reach >= end;)
        if (ofi->ranges[i].end >= end && (mr = ofi->ranges[i].mr))
            break;
    pthread_rwlock_unlock(&ofi->ranges_lock);
    return mr;
}

/* Index of exactly that range, or n_ranges. Under ranges_lock. */
static size_t exact(const ddstore__ofi *ofi, uint64_t start, uint64_t end)
{
    for (size_t i = first_after(ofi, start); i-- > 0 && ofi->ranges[i].start == start;)
        if (ofi->ranges[i].end == end)
            return i;
    return ofi->n_ranges;
}

static bool insert_range(ddstore__ofi *ofi, const ddstore__ofi_range *range)
{
    ddstore__ofi_range *all =
        realloc(ofi->ranges, (ofi->n_ranges + 1) * sizeof(ofi->ranges[0]));
    if (!all)
        return false;
    ofi->ranges = all;
    size_t at = first_after(ofi, range->start);
    memmove(all + at + 1, all + at, (ofi->n_ranges - at) * sizeof(all[0]));
    all[at] = *range;
    ofi->n_ranges++;
    update_reach(ofi, at);
    return true;
}

int ddstore__ofi_register(ddstore__ofi *ofi, void *data, uint64_t bytes,
                          ddstore_error *err)
{
    ddstore__ofi_range range = {.start = (uintptr_t)data,
                                .end = (uintptr_t)data + bytes};
    if (bytes == 0 || range.end < range.start)
        return ddstore__fail(err, DDSTORE_EINVAL, "a destination of %llu bytes",
                             (unsigned long long)bytes);
    int rc = 0;
    pthread_rwlock_wrlock(&ofi->ranges_lock);
    if (exact(ofi, range.start, range.end) == ofi->n_ranges) {
        /* Bound to one endpoint a registration would not serve the other readers. */
        if (ofi->mr_mode & FI_MR_LOCAL && !(ofi->mr_mode & FI_MR_ENDPOINT))
            rc = ddstore__ofi_local_mr(ofi, NULL, data, bytes, &range.mr, err);
        if (rc == 0 && !insert_range(ofi, &range)) {
            if (range.mr)
                fi_close(&range.mr->fid);
            rc = ddstore__fail(err, DDSTORE_ENOMEM, "no memory to note a destination");
        }
    }
    pthread_rwlock_unlock(&ofi->ranges_lock);
    return rc;
}

int ddstore__ofi_unregister(ddstore__ofi *ofi, void *data, uint64_t bytes,
                            ddstore_error *err)
{
    struct fid_mr *mr = NULL;
    pthread_rwlock_wrlock(&ofi->ranges_lock);
    size_t at = exact(ofi, (uintptr_t)data, (uintptr_t)data + bytes);
    bool found = at < ofi->n_ranges;
    if (found) {
        mr = ofi->ranges[at].mr;
        ofi->n_ranges--;
        memmove(ofi->ranges + at, ofi->ranges + at + 1,
                (ofi->n_ranges - at) * sizeof(ofi->ranges[0]));
        update_reach(ofi, at);
    }
    pthread_rwlock_unlock(&ofi->ranges_lock);
    if (mr)
        fi_close(&mr->fid);
    if (!found)
        return ddstore__fail(err, DDSTORE_EINVAL, "%p, %llu bytes, was not registered",
                             data, (unsigned long long)bytes);
    return 0;
}

void ddstore__ofi_forget_ranges(ddstore__ofi *ofi)
{
    for (size_t i = 0; i < ofi->n_ranges; i++)
        if (ofi->ranges[i].mr)
            fi_close(&ofi->ranges[i].mr->fid);
    free(ofi->ranges);
    ofi->ranges = NULL;
    ofi->n_ranges = 0;
}

/* ---- where a read's bytes arrive ---- */

static int bounce_open(ddstore__ofi *ofi, ddstore__ofi_reader *reader,
                       ddstore_error *err)
{
    size_t bytes = (size_t)DDSTORE__OFI_BOUNCE_COUNT * DDSTORE__OFI_BOUNCE_BYTES;
    uint8_t *memory = aligned_alloc(4096, bytes);
    uint8_t **slots = calloc(DDSTORE__OFI_BOUNCE_COUNT, sizeof(*slots));
    int rc = memory && slots ? ddstore__ofi_local_mr(ofi, reader->ep, memory, bytes,
                                                     &reader->bounce_mr, err)
                             : ddstore__fail(err, DDSTORE_ENOMEM,
                                             "no memory for a reader's buffers");
    if (rc != 0) {
        free(memory);
        free(slots);
        return rc;
    }
    for (size_t i = 0; i < DDSTORE__OFI_BOUNCE_COUNT; i++)
        slots[i] = memory + i * DDSTORE__OFI_BOUNCE_BYTES;
    reader->bounce = memory;
    reader->free_bounce = slots;
    reader->n_free_bounce = DDSTORE__OFI_BOUNCE_COUNT;
    return 0;
}

static int place_bounce(ddstore__ofi *ofi, ddstore__ofi_reader *reader,
                        ddstore__ofi_op *op, ddstore_error *err)
{
    int rc = reader->bounce ? 0 : bounce_open(ofi, reader, err);
    if (rc != 0)
        return rc;
    if (reader->n_free_bounce == 0)
        return 1;
    op->bounce = reader->free_bounce[--reader->n_free_bounce];
    return 0;
}

int ddstore__ofi_place(ddstore__ofi *ofi, ddstore__ofi_reader *reader,
                       ddstore__ofi_op *op, ddstore__ofi_job *job, uint8_t **target,
                       void **desc, ddstore_error *err)
{
    struct fid_mr *mr = NULL;
    uint64_t start = (uintptr_t)op->dst, end = start + op->bytes;
    *target = op->dst;
    *desc = NULL;
    if (!(ofi->mr_mode & FI_MR_LOCAL))
        return 0;
    if (reader->call_mr && start >= reader->call_start && end <= reader->call_end)
        mr = reader->call_mr;
    else if (ofi->n_ranges)
        mr = find_range(ofi, start, end);
    if (!mr && op->bytes <= DDSTORE__OFI_BOUNCE_BYTES) {
        int rc = place_bounce(ofi, reader, op, err);
        if (rc != 0)
            return rc;
        *target = op->bounce;
        mr = reader->bounce_mr;
    } else if (!mr) {
        int64_t begun = ddstore__now_ns();
        int rc =
            ddstore__ofi_local_mr(ofi, reader->ep, op->dst, op->bytes, &op->mr, err);
        job->mr_ns += ddstore__now_ns() - begun;
        if (rc != 0)
            return rc;
        job->registrations++;
        mr = op->mr;
    }
    *desc = mr ? fi_mr_desc(mr) : NULL;
    return 0;
}

void ddstore__ofi_register_call(ddstore__ofi *ofi, ddstore__ofi_reader *reader,
                                ddstore__ofi_job *job)
{
    uint64_t start = UINT64_MAX, end = 0, bytes = 0;
    size_t large = 0;
    if (!(ofi->mr_mode & FI_MR_LOCAL))
        return;
    for (size_t i = 0; i < job->n; i++) {
        uint64_t from = (uintptr_t)job->pieces[i].dst, length = job->pieces[i].bytes;
        if (length <= DDSTORE__OFI_BOUNCE_BYTES)
            continue;
        start = from < start ? from : start;
        end = from + length > end ? from + length : end;
        bytes += length;
        large++;
    }
    if (large < 2 || bytes < (end - start) / 2 || find_range(ofi, start, end))
        return;
    int64_t begun = ddstore__now_ns();
    /* The hull came to light as an address of the caller's; it is a pointer again here.
     */
    if (ddstore__ofi_local_mr(ofi, reader->ep, (void *)(uintptr_t)start, end - start,
                              &reader->call_mr, NULL) == 0) {
        reader->call_start = start;
        reader->call_end = end;
        job->registrations++;
    }
    job->mr_ns += ddstore__now_ns() - begun;
}

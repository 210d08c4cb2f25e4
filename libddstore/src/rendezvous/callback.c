/* A group that meets through a host program's own allgather of equal pieces. */
#include "rendezvous.h"

#include <stdlib.h>

#define ROUND_BYTES (64u << 20) /* gathered at once by all ranks, padding included */
#define PIECE_LEAST (64u << 10)

struct callback_comm {
    ddstore_comm base;
    ddstore_comm_callbacks host;
    uint8_t
        *small; /* 8 bytes a rank: never fails for lack of memory in mid-collective */
};

/* What one allgatherv needs beside the result. */
struct plan {
    uint64_t piece;      /* bytes a rank and round */
    uint64_t largest;    /* contribution */
    uint8_t *mine, *all; /* one piece, and one a rank */
    uint8_t *data;
};

static int gather(struct callback_comm *c, const void *mine, size_t bytes, void *all,
                  ddstore_error *err)
{
    if (atomic_load(&c->base.closed))
        return ddstore__fail(err, DDSTORE_ECLOSED, "the communicator was closed");
    int rc = c->host.allgather(c->host.arg, mine, bytes, all);
    if (!rc)
        return DDSTORE_OK;
    return ddstore__fail(
        err, DDSTORE_EPEER,
        "the host program's allgather of %zu bytes failed on rank %d of %d "
        "(it returned %d)",
        bytes, c->base.rank, c->base.size, rc);
}

/* Fills offsets[0..size]; all ranks come to the same result. */
static int gather_sizes(struct callback_comm *c, size_t bytes, uint64_t *offsets,
                        uint64_t *largest, ddstore_error *err)
{
    uint8_t word[8];
    ddstore__put64(word, bytes);
    int rc = gather(c, word, sizeof(word), c->small, err);
    if (rc)
        return rc;
    *largest = 0;
    offsets[0] = 0;
    for (int r = 0; r < c->base.size; r++) {
        uint64_t n = ddstore__get64(c->small + (size_t)r * 8);
        if (n > PTRDIFF_MAX - offsets[r])
            return ddstore__fail(
                err, DDSTORE_EINVAL,
                "the contributions up to rank %d exceed what memory can "
                "address",
                r);
        offsets[r + 1] = offsets[r] + n;
        *largest = n > *largest ? n : *largest;
    }
    return DDSTORE_OK;
}

static void free_plan(struct plan *plan)
{
    free(plan->mine);
    free(plan->all);
    free(plan->data);
}

/* All ranks learn whether all of them have the memory: nobody leaves the others alone.
 */
static int allocate(struct callback_comm *c, uint64_t total, struct plan *plan,
                    ddstore_error *err)
{
    uint64_t size = (uint64_t)c->base.size;
    uint64_t piece = ROUND_BYTES / size;
    piece = piece < PIECE_LEAST ? PIECE_LEAST : piece;
    plan->piece = piece < plan->largest ? piece : plan->largest;
    plan->mine = malloc(plan->piece);
    plan->all = malloc(plan->piece * size);
    plan->data = malloc(total);
    uint8_t lacking = !plan->mine || !plan->all || !plan->data;
    int rc = gather(c, &lacking, 1, c->small, err);
    if (rc)
        return rc;
    for (int r = 0; r < c->base.size; r++)
        if (c->small[r])
            return ddstore__fail(
                err, DDSTORE_ENOMEM,
                "rank %d has no memory for the %llu bytes of all %d ranks", r,
                (unsigned long long)total, c->base.size);
    return DDSTORE_OK;
}

static int gather_rounds(struct callback_comm *c, const uint8_t *mine, size_t bytes,
                         const uint64_t *offsets, struct plan *plan, ddstore_error *err)
{
    for (uint64_t at = 0; at < plan->largest; at += plan->piece) {
        uint64_t left = plan->largest - at;
        uint64_t piece = left < plan->piece ? left : plan->piece;
        uint64_t own = bytes > at ? bytes - at : 0;
        own = own < piece ? own : piece;
        if (own)
            memcpy(plan->mine, mine + at, own);
        memset(plan->mine + own, 0, piece - own);
        int rc = gather(c, plan->mine, piece, plan->all, err);
        if (rc)
            return rc;
        for (int r = 0; r < c->base.size; r++) {
            uint64_t n = offsets[r + 1] - offsets[r];
            n = n > at ? n - at : 0;
            n = n < piece ? n : piece;
            if (n)
                memcpy(plan->data + offsets[r] + at, plan->all + (uint64_t)r * piece,
                       n);
        }
    }
    return DDSTORE_OK;
}

static int callback_allgatherv(ddstore_comm *comm, const void *mine, size_t bytes,
                               void **data, uint64_t *offsets, ddstore_error *err)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    struct plan plan = {0};
    int rc = gather_sizes(c, bytes, offsets, &plan.largest, err);
    if (!rc && plan.largest == 0) {
        *data = malloc(1);
        return *data ? DDSTORE_OK
                     : ddstore__fail(err, DDSTORE_ENOMEM,
                                     "no memory for an empty result");
    }
    if (!rc)
        rc = allocate(c, offsets[comm->size], &plan, err);
    if (!rc)
        rc = gather_rounds(c, mine, bytes, offsets, &plan, err);
    if (!rc) {
        *data = plan.data;
        plan.data = NULL;
    }
    free_plan(&plan);
    return rc;
}

static void callback_close(ddstore_comm *comm)
{
    struct callback_comm *c = (struct callback_comm *)comm;
    if (c->host.close && comm->fork_generation == ddstore__fork_generation)
        c->host.close(c->host.arg);
    free(c->small);
    free(c);
}

static const ddstore__rendezvous_ops ops = {
    .name = "callback",
    .allgatherv = callback_allgatherv,
    .close = callback_close,
};

int ddstore_comm_open_callbacks(const ddstore_comm_callbacks *how, ddstore_comm **out,
                                ddstore_error *err)
{
    if (!out)
        return ddstore__fail(err, DDSTORE_EINVAL,
                             "no place for the communicator is given");
    *out = NULL;
    if (!how || !how->allgather)
        return ddstore__fail(err, DDSTORE_EINVAL, "no allgather function is given");
    if (how->size < 1 || how->rank < 0 || how->rank >= how->size)
        return ddstore__fail(err, DDSTORE_EINVAL, "rank %d is not one of %d ranks",
                             how->rank, how->size);
    struct callback_comm *c = calloc(1, sizeof(*c));
    uint8_t *small = calloc((size_t)how->size, 8);
    if (!c || !small) {
        free(c);
        free(small);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a communicator");
    }
    c->base.ops = &ops;
    c->base.rank = how->rank;
    c->base.size = how->size;
    c->base.fork_generation = ddstore__fork_generation;
    c->host = *how;
    c->small = small;
    *out = &c->base;
    return DDSTORE_OK;
}

/*
 * get_batch of method 0, which all ranks call together. Rows that are mapped are
 * copied; the others are asked for by an allgather of their numbers and sent by rounds
 * of an all-to-all, each of at most DDSTORE_ALLTOALL_MAX_BYTES a rank. The method is
 * that of MDLoader: every rank learns what all want, and so what to send.
 */
#include "copy.h"
#include "fetch.h"

#include <stdlib.h>

#define ROWS_MAX (1u << 27) /* MPI counts the bytes of their numbers by an int */
#define BLOCK    256        /* rows packed at a time */

/* Rows between this rank and each other one, in the order in which their bytes travel:
 * of rank r, entries first[r] to first[r + 1] - 1. */
typedef struct rows_by_rank {
    size_t *first;
    uint64_t *at; /* offsets in bytes: of the own shard, or of the destination */
} rows_by_rank;

typedef struct batch {
    ddstore *store;
    ddstore_var *var;
    ddstore__far_run *far;  /* what this rank wants, row by row */
    size_t n_far, most_far; /* most_far: the most that any rank wants */
    uint64_t most_pair;     /* rows, of any rank from any other */
    ddstore__gather_head *heads;
    uint8_t *wanted; /* a status and the rows' numbers, piece bytes a rank */
    size_t piece;
    rows_by_rank out, in;
    ddstore__reader *reader; /* whose scratch memory the next three are */
    uint8_t *send, *receive;
    int *counts; /* of bytes and displacements, for both directions: 4 * ranks */
} batch;

static void free_batch(batch *b)
{
    void *all[] = {b->heads, b->wanted, b->out.first, b->out.at, b->in.first, b->in.at};
    for (size_t i = 0; i < DDSTORE__COUNT(all); i++)
        ddstore__callback_free(b->store->comm, all[i]);
    if (b->send && b->store->comm->broken) /* MPI may still write there */
        ddstore__callback_free(
            b->store->comm, ddstore__reader_give(b->reader, DDSTORE__SCRATCH_EXCHANGE));
}

/* -- what all want -- */

static uint64_t most_of_one(const batch *b)
{
    uint64_t most = 0;
    if (!b->n_far)
        return 0;
    size_t *n = calloc((size_t)b->store->size, sizeof(*n));
    for (size_t i = 0; n && i < b->n_far; i++) {
        int owner = ddstore__layout_rank(&b->var->layout, b->far[i].row);
        most = ++n[owner] > most ? n[owner] : most;
    }
    free(n);
    return n ? most : b->n_far; /* a bound will do */
}

static int other_variable(const batch *b, int rank, ddstore_error *err)
{
    const ddstore_var *zero = ddstore_var_at(b->store, b->heads[0].word[0]);
    const ddstore_var *other = ddstore_var_at(b->store, b->heads[rank].word[0]);
    return ddstore__fail(err, DDSTORE_EINVAL,
                         "get_batch: rank %d reads variable %s and rank 0 %s", rank,
                         other ? other->name : "?", zero ? zero->name : "?");
}

/* The ranks' failures, or what they want: the same result on all of them. */
static int tell_wishes(batch *b, const ddstore_error *failure, ddstore_error *err)
{
    ddstore__gather_head mine = {
        .kind = DDSTORE__GATHER_BATCH,
        .code = failure ? failure->code : 0,
        .word = {b->var ? b->var->number : 0, b->n_far, most_of_one(b)},
    };
    ddstore__gathered g;
    bool failed = false;
    int rc = ddstore__comm_enter(b->store->comm, err);
    if (rc)
        return rc;
    rc = ddstore__comm_leave(
        b->store->comm, ddstore__callback_enter(b->store->comm, &mine, b->heads, err));
    for (int r = 0; !rc && r < b->store->size; r++)
        failed |= b->heads[r].code != 0;
    if (rc || failed) {
        if (!rc)
            rc = ddstore__store_agree(b->store, failure, "get_batch", NULL, 0, &g, err);
        return rc;
    }
    for (int r = 0; r < b->store->size; r++) {
        if (b->heads[r].word[0] != b->heads[0].word[0])
            return other_variable(b, r, err);
        uint64_t n = b->heads[r].word[1], pair = b->heads[r].word[2];
        b->most_far = n > b->most_far ? n : b->most_far;
        b->most_pair = pair > b->most_pair ? pair : b->most_pair;
    }
    if (b->most_far > ROWS_MAX)
        return ddstore__fail(
            err, DDSTORE_EINVAL,
            "get_batch: a rank asks for %zu rows of others in one call, "
            "which may be %zu: use several calls",
            b->most_far, (size_t)ROWS_MAX);
    return DDSTORE_OK;
}

/* -- who sends what -- */

static bool list_open(rows_by_rank *l, int ranks, uint64_t n)
{
    if (n > SIZE_MAX / sizeof(*l->at))
        return false;
    l->first = calloc((size_t)ranks + 2, sizeof(*l->first));
    l->at = malloc((n ? n : 1) * sizeof(*l->at));
    return l->first && l->at;
}

/* The destination's rows by the rank that they come from. */
static bool list_in(batch *b)
{
    size_t *first;
    if (!list_open(&b->in, b->store->size, b->n_far))
        return false;
    first = b->in.first + 1; /* entered one rank late, so that it ends as it should */
    for (size_t i = 0; i < b->n_far; i++)
        first[1 + ddstore__layout_rank(&b->var->layout, b->far[i].row)]++;
    for (int r = 0; r < b->store->size; r++)
        first[r + 1] += first[r];
    for (size_t i = 0; i < b->n_far; i++)
        b->in.at[first[ddstore__layout_rank(&b->var->layout, b->far[i].row)]++] =
            b->far[i].place * b->var->row_bytes;
    return true;
}

static int64_t wanted_row(const batch *b, int rank, size_t i)
{
    return (int64_t)ddstore__get64(b->wanted + (size_t)rank * b->piece + 8 + 8 * i);
}

/* Room for as many rows of this rank's as the others may want. */
static bool open_out(batch *b)
{
    uint64_t most = 0;
    for (int r = 0; r < b->store->size; r++)
        most += b->heads[r].word[2];
    return list_open(&b->out, b->store->size, most);
}

/* This rank's rows by the rank that wants them. */
static void list_out(batch *b)
{
    const int64_t *start = b->var->layout.start;
    int64_t from = start[b->store->rank], to = start[b->store->rank + 1];
    size_t at = 0;
    for (int r = 0; r < b->store->size; r++) {
        for (size_t i = 0; i < b->heads[r].word[1]; i++) {
            int64_t row = wanted_row(b, r, i);
            if (row >= from && row < to)
                b->out.at[at++] = (uint64_t)(row - from) * b->var->row_bytes;
        }
        b->out.first[r + 1] = at;
    }
}

/* Bytes that one rank sends another one in a round. */
static uint64_t pair_bytes(const batch *b)
{
    uint64_t share = b->store->settings.alltoall_max_bytes / (uint64_t)b->store->size;
    uint64_t all = b->most_pair * b->var->row_bytes;
    share = share ? share : 1;
    return share < all ? share : all;
}

/* Kept between calls: fresh pages would cost more than the rows. */
static bool exchange_memory(batch *b)
{
    size_t buffer = pair_bytes(b) * (size_t)b->store->size;
    size_t counts = 4 * (size_t)b->store->size * sizeof(*b->counts);
    uint8_t *all = ddstore__reader_scratch(b->reader, DDSTORE__SCRATCH_EXCHANGE,
                                           2 * buffer + counts);
    if (!all)
        return false;
    b->counts = (int *)(void *)all;
    b->send = all + counts;
    b->receive = b->send + buffer;
    return true;
}

/* Gathers the numbers of all rows that are wanted; each rank says first whether it has
 * the memory for its part. */
static int gather_rows(batch *b, ddstore_error *err)
{
    size_t ranks = (size_t)b->store->size;
    b->piece = 8 + 8 * b->most_far;
    uint8_t *mine = malloc(b->piece);
    uint8_t lacks[8] = {1};
    b->wanted = malloc(b->piece * ranks);
    bool ok = mine && b->wanted && exchange_memory(b) && open_out(b) && list_in(b);
    if (!mine || !b->wanted) { /* it can't even hear the others */
        free(mine);
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a batch");
    }
    memcpy(mine, lacks, sizeof(lacks));
    mine[0] = !ok;
    for (size_t i = 0; i < b->n_far; i++)
        ddstore__put64(mine + 8 + 8 * i, (uint64_t)b->far[i].row);
    memset(mine + 8 + 8 * b->n_far, 0, 8 * (b->most_far - b->n_far));
    int rc = ddstore__callback_gather(b->store->comm, mine, b->piece, b->wanted, err);
    ddstore__callback_free(b->store->comm, mine);
    for (int r = 0; !rc && r < b->store->size; r++)
        if (b->wanted[(size_t)r * b->piece]) {
            b->store->comm->in_step = true;
            rc = ddstore__fail(err, DDSTORE_ENOMEM, "rank %d has no memory for a batch",
                               r);
        }
    return rc;
}

/* -- rounds -- */

/* What is left of a round's part of the stream that the rows between two ranks make up.
 */
typedef struct stream {
    const uint64_t *at; /* of the next row */
    uint8_t *base;
    uint64_t row_bytes, skip, bytes; /* skip: of the next row, sent in the last round */
} stream;

static stream stream_from(const batch *b, const rows_by_rank *l, int rank, void *base,
                          uint64_t from, int bytes)
{
    uint64_t row = b->var->row_bytes;
    return (stream){.at = l->at + (bytes ? l->first[rank] + from / row : 0),
                    .base = base,
                    .row_bytes = row,
                    .skip = from % row,
                    .bytes = (uint64_t)bytes};
}

/* Its next pieces, at most BLOCK of them. */
static size_t next_pieces(stream *s, struct iovec *pieces)
{
    size_t n = 0;
    for (; n < BLOCK && s->bytes; n++) {
        uint64_t step = s->row_bytes - s->skip;
        step = step < s->bytes ? step : s->bytes;
        pieces[n] = (struct iovec){s->base + *s->at++ + s->skip, step};
        s->bytes -= step;
        s->skip = 0;
    }
    return n;
}

static void pack(stream s, uint8_t *packed)
{
    struct iovec pieces[BLOCK];
    for (size_t n; (n = next_pieces(&s, pieces));) {
        ddstore__copy_pieces(packed, pieces, n);
        for (size_t i = 0; i < n; i++)
            packed += pieces[i].iov_len;
    }
}

static void unpack(stream s, const uint8_t *packed)
{
    struct iovec pieces[BLOCK];
    for (size_t n; (n = next_pieces(&s, pieces));)
        for (size_t i = 0; i < n; packed += pieces[i++].iov_len)
            memcpy(pieces[i].iov_base, packed, pieces[i].iov_len);
}

/* The bytes of each rank's stream in the round that begins at byte `from` of it. */
static void count_round(const batch *b, const rows_by_rank *l, uint64_t from,
                        int *bytes, int *at)
{
    uint64_t share = pair_bytes(b), sum = 0;
    for (int r = 0; r < b->store->size; r++) {
        uint64_t all = (l->first[r + 1] - l->first[r]) * b->var->row_bytes;
        uint64_t left = all > from ? all - from : 0;
        bytes[r] = (int)(left < share ? left : share);
        at[r] = (int)sum;
        sum += (uint64_t)bytes[r];
    }
}

static int one_round(batch *b, uint64_t from, uint8_t *dst, ddstore_error *err)
{
    const ddstore_mpi_calls *mpi = &b->store->mpi;
    int ranks = b->store->size;
    int *out_bytes = b->counts, *out_at = out_bytes + ranks;
    int *in_bytes = out_at + ranks, *in_at = in_bytes + ranks;
    count_round(b, &b->out, from, out_bytes, out_at);
    count_round(b, &b->in, from, in_bytes, in_at);
    for (int r = 0; r < ranks; r++)
        pack(stream_from(b, &b->out, r, ddstore__segment_data(b->var->own), from,
                         out_bytes[r]),
             b->send + out_at[r]);
    if (mpi->exchange(mpi->comm.arg, b->send, out_bytes, out_at, b->receive, in_bytes,
                      in_at)) {
        ddstore__callback_give_up(b->store->comm); /* it may have begun all the same */
        return ddstore__fail(err, DDSTORE_EFABRIC, "MPI could not exchange rows (%s)",
                             mpi->library);
    }
    int rc = ddstore__callback_wait(b->store->comm, err);
    for (int r = 0; !rc && r < ranks; r++)
        unpack(stream_from(b, &b->in, r, dst, from, in_bytes[r]),
               b->receive + in_at[r]);
    return rc;
}

static int exchange(batch *b, uint8_t *dst, ddstore_error *err)
{
    int rc = gather_rows(b, err);
    if (!rc)
        list_out(b);
    uint64_t share = pair_bytes(b), all = b->most_pair * b->var->row_bytes;
    for (uint64_t from = 0; !rc && from < all; from += share)
        rc = one_round(b, from, dst, err);
    return ddstore__comm_leave(b->store->comm, rc);
}

/* -- the call -- */

static ddstore__wish wish(const int64_t *rows, size_t n)
{
    return (ddstore__wish){
        .rows = n ? rows : NULL, .n = n, .pieces = n, .total = n, .singly = true};
}

static int own_part(batch *b, const int64_t *rows, size_t n, uint8_t *dst,
                    ddstore_error *err)
{
    int rc = ddstore__check_rows(b->var, rows, n, err);
    if (rc || !b->var->row_bytes)
        return rc;
    b->far = ddstore__reader_scratch(b->reader, DDSTORE__SCRATCH_ENTRIES,
                                     (n ? n : 1) * sizeof(*b->far));
    if (!b->far)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a batch of %zu rows",
                             n);
    ddstore__far far = {.runs = b->far};
    ddstore__wish w = wish(rows, n);
    rc = ddstore__copy_mapped(b->var, &w, dst, false, &far, err);
    b->n_far = far.n;
    return rc;
}

static int run(batch *b, const int64_t *rows, size_t n, uint8_t *dst,
               const ddstore_error *failure, ddstore_error *err)
{
    ddstore_error mine;
    int rc = failure ? failure->code : own_part(b, rows, n, dst, &mine);
    if (rc)
        b->n_far = 0;
    int met = tell_wishes(b, rc ? (failure ? failure : &mine) : NULL, err);
    if (rc && !b->store->comm->broken) /* its own words, not those that travelled */
        return ddstore__fail(err, rc, "get_batch failed on rank %d: %s", b->store->rank,
                             failure ? failure->message : mine.message);
    if (met)
        return met;
    int64_t begun = b->store->settings.profile ? ddstore__now_ns() : 0;
    ddstore__times times = {0};
    size_t far = b->n_far;
    ddstore__far again = {.runs = b->far};
    ddstore__wish w = wish(rows, n);
    /* Rows that are lost meanwhile fail here alone, after the exchange. */
    rc = b->most_far ? exchange(b, dst, err) : DDSTORE_OK;
    if (begun)
        times.wait_ns = ddstore__now_ns() - begun;
    if (!rc && far < n && b->var->row_bytes)
        rc = ddstore__copy_mapped(b->var, &w, dst, true, far ? &again : NULL, err);
    if (begun && !rc)
        ddstore__count_read(b->var, n, n - far, &times,
                            ddstore__now_ns() - begun - times.wait_ns);
    return rc;
}

int ddstore__alltoall(ddstore *store, ddstore_var *var, ddstore__reader *reader,
                      const int64_t *rows, size_t n, void *dst,
                      const ddstore_error *failure, ddstore_error *err)
{
    batch b = {.store = store, .var = var, .reader = reader};
    b.heads = malloc((size_t)store->size * sizeof(*b.heads));
    if (!b.heads)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a batch");
    int rc = run(&b, rows, n, dst, failure, err);
    free_batch(&b);
    return rc;
}

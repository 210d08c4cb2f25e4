/* The cases that every rendezvous back end passes; a member of each runs them, as a
 * thread or as a process, so they abort instead of jumping. open_comm(arg, rank, size)
 * and counters(arg), ROUNDS of them that all members share, stand before this file. */
#ifndef RENDEZVOUS_CASES_H
#define RENDEZVOUS_CASES_H

#define CHECK(e)                                                                       \
    ((e) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #e), abort()))

static size_t length_of(int rank, int step)
{
    static const size_t lengths[] = {0, 1, 7, 4096, 100000};
    return lengths[(size_t)(rank + step) % DDSTORE__COUNT(lengths)];
}

static uint8_t byte_of(int rank, int step, size_t i)
{
    return (uint8_t)(rank * 31 + step * 7 + (int)(i % 251));
}

static void gather_once(ddstore_comm *comm, int rank, int size, int step,
                        size_t (*length)(int, int))
{
    ddstore_error err = {0};
    size_t bytes = length(rank, step);
    uint8_t *mine = calloc(1, bytes + 1);
    void *data;
    uint64_t *offsets = calloc((size_t)size + 1, sizeof(*offsets));
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_of(rank, step, i);
    int rc = ddstore_comm_allgatherv(comm, mine, bytes, &data, offsets, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
    CHECK(rc == 0 && data && offsets[0] == 0);
    for (int r = 0; r < size; r++) {
        size_t n = length(r, step);
        CHECK(offsets[r + 1] - offsets[r] == n);
        const uint8_t *p = (const uint8_t *)data + offsets[r];
        for (size_t i = 0; i < n; i++)
            CHECK(p[i] == byte_of(r, step, i));
    }
    ddstore_release(data);
    free(mine);
    free(offsets);
}

static void case_gather(int rank, int size, void *arg)
{
    ddstore_comm *comm = open_comm(arg, rank, size);
    CHECK(ddstore_comm_rank(comm) == rank && ddstore_comm_size(comm) == size);
    for (int step = 0; step < 12; step++)
        gather_once(comm, rank, size, step, length_of);
    ddstore_comm_close(comm);
}

static size_t nothing(int rank, int step)
{
    return 0 * (size_t)(rank + step);
}

static size_t largest = (20u << 20) + 3; /* that is tried */

static size_t uneven(int rank, int step)
{
    (void)step;
    return rank == 1 ? largest : (size_t)rank * 1000;
}

static void case_sizes(int rank, int size, void *arg)
{
    ddstore_comm *comm = open_comm(arg, rank, size);
    gather_once(comm, rank, size, 0, nothing);
    gather_once(comm, rank, size, 1, uneven);
    gather_once(comm, rank, size, 2, nothing);
    ddstore_comm_close(comm);
}

/* Nobody leaves round k before all have entered it. */
static void case_barrier(int rank, int size, void *arg)
{
    atomic_int *count = counters(arg);
    ddstore_comm *comm = open_comm(arg, rank, size);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_fetch_add(&count[round], 1);
        CHECK(ddstore_comm_barrier(comm, NULL) == 0);
        CHECK(atomic_load(&count[round]) == size);
    }
    ddstore_comm_close(comm);
}

static void case_arguments(int rank, int size, void *arg)
{
    ddstore_error err = {0};
    void *data;
    uint64_t offsets[9];
    ddstore_comm *comm = open_comm(arg, rank, size);
    CHECK(ddstore_comm_allgatherv(comm, "x", 1, NULL, offsets, &err) == DDSTORE_EINVAL);
    CHECK(ddstore_comm_allgatherv(comm, "x", 1, &data, NULL, &err) == DDSTORE_EINVAL);
    CHECK(ddstore_comm_allgatherv(comm, NULL, 1, &data, offsets, NULL) ==
          DDSTORE_EINVAL);
    CHECK(ddstore_comm_allgatherv(NULL, "x", 1, &data, offsets, &err) ==
          DDSTORE_EINVAL);
    CHECK(err.message[0] != '\0');
    gather_once(comm, rank, size, 3, length_of); /* still usable */
    ddstore_comm_wake(comm);
    CHECK(ddstore_comm_barrier(comm, &err) == DDSTORE_ECLOSED);
    CHECK(ddstore_comm_allgatherv(comm, "x", 1, &data, offsets, &err) ==
          DDSTORE_ECLOSED);
    ddstore_comm_close(comm);
}

#endif

/* A member of the conformance suite over PMI2, which a launcher starts:
 * `srun --mpi=pmi2 pmi2_member FILE`. FILE, empty at first, is memory that all share.
 */
#include "rendezvous_help.h"

#include <sys/mman.h>

#define ROUNDS 50

static ddstore_comm *open_comm(void *arg, int rank, int size)
{
    (void)arg;
    ddstore_comm *comm;
    ddstore_error err = {0};
    ddstore_comm_pmi2 how = {.ns = "s0", .timeout_s = 60};
    if (ddstore_comm_open_pmi2(&how, &comm, &err)) {
        fprintf(stderr, "open: %s\n", err.message);
        abort();
    }
    if (size && (ddstore_comm_rank(comm) != rank || ddstore_comm_size(comm) != size))
        abort();
    return comm;
}

static atomic_int *counters(void *arg)
{
    return arg;
}

#include "rendezvous_cases.h"

static size_t three_thousand(int rank, int step)
{
    return 3000 + 0 * (size_t)(rank + step);
}

static void case_records(int rank, int size, void *arg)
{
    ddstore_comm *comm = open_comm(arg, rank, size);
    double begun = seconds();
    for (int step = 0; step < 3; step++)
        gather_once(comm, rank, size, step, three_thousand);
    if (rank == 0)
        printf("%d members, 3000 bytes each: %.3f s an exchange\n", size,
               (seconds() - begun) / 3);
    ddstore_comm_close(comm);
}

/* More than PMI2 takes: every rank hears whose it is, nobody waits. */
static void case_too_large(int rank, int size, void *arg)
{
    ddstore_comm *comm = open_comm(arg, rank, size);
    ddstore_error err = {0};
    void *data, *mine = calloc(1, 32u << 20);
    uint64_t offsets[65];
    int rc = ddstore_comm_allgatherv(comm, mine, rank == size - 1 ? 32u << 20 : 5,
                                     &data, offsets, &err);
    char name[32];
    snprintf(name, sizeof(name), "rank %d gives ", size - 1);
    CHECK(rc == DDSTORE_EUNSUPPORTED && !data && strstr(err.message, name));
    CHECK(ddstore_comm_barrier(comm, &err) == DDSTORE_EUNSUPPORTED);
    free(mine);
    ddstore_comm_close(comm);
}

/* One rank is in another call: who gathers is told, and nobody waits. */
static void case_mixed(int rank, int size, void *arg)
{
    ddstore_comm *comm = open_comm(arg, rank, size);
    ddstore_error err = {0};
    void *data;
    uint64_t offsets[65];
    if (rank == 0) {
        CHECK(ddstore_comm_barrier(comm, NULL) == 0);
    } else {
        int rc = ddstore_comm_allgatherv(comm, "x", 1, &data, offsets, &err);
        CHECK(rc == DDSTORE_ECONFLICT &&
              strstr(err.message, "rank 0 has given nothing"));
    }
    ddstore_comm_close(comm);
}

static void case_forked(int rank, int size, void *arg)
{
    ddstore_comm *comm = open_comm(arg, rank, size);
    pid_t pid = fork();
    if (pid == 0) {
        ddstore_error err = {0};
        ddstore_comm *other;
        ddstore_comm_pmi2 how = {.ns = "s1"};
        int rc = ddstore_comm_barrier(comm, NULL);
        int opened = ddstore_comm_open_pmi2(&how, &other, &err);
        ddstore_comm_close(comm);
        _exit(rc == DDSTORE_EFORKED && opened == DDSTORE_EUNSUPPORTED ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(ddstore_comm_barrier(comm, NULL) == 0);
    ddstore_comm_close(comm);
}

int main(int argc, char **argv)
{
    alarm(120);
    int fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
    if (fd < 0 || ftruncate(fd, 4096))
        return 2;
    void *shared_memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared_memory == MAP_FAILED)
        return 2;
    ddstore_comm *comm = open_comm(NULL, 0, 0);
    int rank = ddstore_comm_rank(comm), size = ddstore_comm_size(comm);
    ddstore_comm_close(comm);
    case_records(rank, size, NULL);
    if (size <= 8) {
        largest = 100000;
        case_gather(rank, size, NULL);
        case_sizes(rank, size, NULL);
        case_barrier(rank, size, shared_memory);
        case_arguments(rank, size, NULL);
        case_too_large(rank, size, NULL);
        case_forked(rank, size, NULL);
        case_mixed(rank, size, NULL); /* calls and gathers differ from here on */
    }
    if (rank == 0)
        printf("passed\n");
    return 0;
}

/* Groups of processes that report on a shared board. */
#ifndef GROUP_HELP_H
#define GROUP_HELP_H

#include "rendezvous_help.h"

#include <sys/mman.h>

/* What the processes of a test tell it. */
static struct board {
    atomic_int ready, rc[16];
    ddstore_error err[16];
} * board;

static inline int setup_board(void **state)
{
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : setup_fast(state);
}

static inline int teardown_board(void **state)
{
    munmap(board, sizeof(*board));
    return teardown(state);
}

static inline bool says(int who, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (strstr(board->err[who].message, text))
        return true;
    fprintf(stderr, "\"%s\" not in: %s\n", text, board->err[who].message);
    return false;
}

struct plan {
    int slot;             /* where on the board */
    const char *identity; /* nullable */
    int steps, delay_ms, hold_ms;
    double timeout_s;
    const char *word; /* what all of the group contribute */
};

/* Opens, makes its steps and checks that every word is the group's own. */
static inline int member(int rank, int size, void *arg)
{
    const struct plan *p = arg;
    ddstore_comm *comm = NULL;
    ddstore_error *err = &board->err[p->slot + rank];
    void *data;
    uint64_t offsets[17];
    const char *word = p->word ? p->word : "w";
    size_t n = strlen(word);
    if (p->identity)
        setenv("DDSTORE_RUN_ID", p->identity, 1);
    sleep_ms(p->delay_ms * rank);
    int rc = try_open(rank, size, p->timeout_s > 0 ? p->timeout_s : 20, &comm, err);
    atomic_fetch_add(&board->ready, 1);
    for (int i = 0; !rc && i < p->steps; i++) {
        rc = ddstore_comm_allgatherv(comm, word, n, &data, offsets, err);
        for (int r = 0; !rc && r < size; r++)
            if (memcmp((char *)data + offsets[r], word, n) != 0)
                rc = 99; /* another group's or an old run's word */
        ddstore_release(data);
        sleep_ms(p->hold_ms);
    }
    atomic_store(&board->rc[p->slot + rank], rc);
    ddstore_comm_close(comm);
    return rc ? 1 : 0;
}

static inline void start_group(pid_t *pids, int size, struct plan *plan)
{
    for (int r = 0; r < size; r++)
        pids[r] = start(member, r, size, plan);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_board, teardown_board)

#endif

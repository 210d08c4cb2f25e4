/* transport/ofi with peers that die, stop, answer late or never were there. */
#include "ofi_pair.h"

/* Returns when all its threads stand still. */
static void stop(const target *t)
{
    int status;
    kill(t->pid, SIGSTOP);
    while (waitpid(t->pid, &status, WUNTRACED) < 0 && errno == EINTR)
        ;
}

/* ---- peers that fail ---- */

static atomic_int late_calls;

static int late_alive(void *arg, uint32_t tag, ddstore_error *e)
{
    (void)arg, (void)e;
    assert_int_equal(tag, 7);
    late_calls++;
    return 0;
}

static int late_by_pid(void *arg, uint32_t tag, ddstore_error *e)
{
    target *t = arg;
    assert_int_equal(tag, 7);
    late_calls++;
    return waitpid(t->pid, NULL, WNOHANG) == 0
               ? 0
               : ddstore__fail(e, DDSTORE_EPEER, "gone");
}

static void *kill_later(void *arg)
{
    usleep(300000);
    kill(((target *)arg)->pid, SIGKILL);
    return NULL;
}

static void killed_target(void **state)
{
    (void)state;
    if (!strcmp(fabric, "ofi:shm"))
        skip(); /* whom it kills may hold a lock of the provider's, for ever */
    target victim = {0};
    ddstore__ofi_peer *p = NULL;
    pthread_t killer;
    static uint8_t memory[64 * ROW];
    ddstore__ofi_piece pieces[64];
    assert_true(target_start(&victim, fabric, "sleep"));
    assert_int_equal(
        ddstore__ofi_peer_open(ofi, victim.address, victim.address_bytes, &p, &err), 0);
    for (uint64_t i = 0; i < 64; i++)
        pieces[i] = piece_of(&victim, p, i * 5000, ROW, memory + i * ROW);
    pthread_create(&killer, NULL, kill_later, &victim);
    int rc = 0;
    int64_t begun = ddstore__now_ns();
    late_calls = 0;
    while (rc == 0 && seconds(begun) < 20) {
        ddstore__ofi_job job = {.pieces = pieces,
                                .n = 64,
                                .timeout_ns = 10 * DDSTORE__S,
                                .late = late_by_pid,
                                .arg = &victim};
        rc = ddstore__ofi_read(ofi, &job, &err);
    }
    if (rc != DDSTORE_EPEER)
        fail_msg("%d %s", rc, err.message);
    assert_true(seconds(begun) < 3);
    assert_true(late_calls > 0);
    pthread_join(killer, NULL);
    begun = ddstore__now_ns(); /* and without anybody who knows */
    assert_int_equal(read_pieces(pieces, 64, 1.0), DDSTORE_EPEER);
    assert_true(seconds(begun) < 2.5);
    ddstore__ofi_peer_close(p);
    close(victim.input);
    check_rows(16, ROW, 0);
}

static void *continue_later(void *arg)
{
    usleep(1000000);
    kill(((target *)arg)->pid, SIGCONT);
    return NULL;
}

static void stopped_target(void **state)
{
    (void)state;
    if (!strcmp(fabric, "ofi:shm"))
        skip(); /* it reads by process_vm_readv, stopped or not */
    static uint8_t memory[16 * ROW];
    ddstore__ofi_piece pieces[16];
    pthread_t thread;
    for (uint64_t i = 0; i < 16; i++)
        pieces[i] = piece_of(&peer_process, peer, i * 7000, ROW, memory + i * ROW);
    memset(memory, 0, sizeof(memory));
    stop(&peer_process);
    pthread_create(&thread, NULL, continue_later, &peer_process);
    late_calls = 0;
    ddstore__ofi_job job = {
        .pieces = pieces, .n = 16, .timeout_ns = 10 * DDSTORE__S, .late = late_alive};
    int rc = ddstore__ofi_read(ofi, &job, &err);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    assert_true(late_calls > 0);
    for (uint64_t i = 0; i < 16; i++)
        assert_true(right(memory + i * ROW, i * 7000, ROW));
}

static void *stop_later(void *arg)
{
    usleep(5000);
    stop(arg);
    return NULL;
}

/* A large read is abandoned half-way; its bytes come late, and harm nothing. */
static void abandoned_read(void **state)
{
    (void)state;
    if (!strcmp(fabric, "ofi:shm"))
        skip();
    uint8_t *memory = calloc(1, TARGET_BYTES);
    ddstore__ofi_piece piece = piece_of(&peer_process, peer, 0, TARGET_BYTES, memory);
    pthread_t thread;
    pthread_create(&thread, NULL, stop_later, &peer_process);
    ddstore__ofi_job job = {.pieces = &piece, .n = 1, .timeout_ns = 500 * DDSTORE__MS};
    int rc = ddstore__ofi_read(ofi, &job, &err);
    pthread_join(thread, NULL);
    if (rc != 0) {
        assert_int_equal(rc, DDSTORE_EPEER);
        assert_true(err.late && ofi->n_aside == 1);
        assert_non_null(strstr(err.message, "may still arrive"));
    }
    kill(peer_process.pid, SIGCONT);
    check_rows(128, ROW, 0);
    for (int i = 0; i < 1000 && ddstore__ofi_reap(ofi); i++)
        usleep(10000);
    assert_int_equal(ofi->n_aside, 0);
    assert_true(rc != 0 || right(memory, 0, TARGET_BYTES));
    check_rows(128, ROW, 0);
    free(memory);
}

/* The same, and closed while it is half-way. */
static void closed_half_way(void **state)
{
    (void)state;
    if (!strcmp(fabric, "ofi:shm"))
        skip();
    uint8_t *memory = calloc(1, TARGET_BYTES);
    ddstore__ofi *first = ofi, *second;
    ddstore__ofi_peer *p;
    pthread_t thread;
    assert_int_equal(open_provider(fabric, "", &second, &err), 0);
    assert_int_equal(ddstore__ofi_peer_open(second, peer_process.address,
                                            peer_process.address_bytes, &p, &err),
                     0);
    ddstore__ofi_piece piece = piece_of(&peer_process, p, 0, TARGET_BYTES, memory);
    ofi = second;
    pthread_create(&thread, NULL, stop_later, &peer_process);
    int rc = read_pieces(&piece, 1, 0.3);
    ofi = first;
    pthread_join(thread, NULL);
    int64_t begun = ddstore__now_ns();
    ddstore__ofi_peer_close(p);
    ddstore__ofi_close(second);
    assert_true(seconds(begun) < 2);
    memset(memory, 0, TARGET_BYTES);
    kill(peer_process.pid, SIGCONT);
    usleep(300000);
    uint64_t changed = 0;
    for (uint64_t i = 0; i < TARGET_BYTES; i++)
        changed += memory[i] != 0;
    assert_true(rc == 0 || rc == DDSTORE_EPEER);
    assert_int_equal(changed, 0);
    check_rows(128, ROW, 0);
    free(memory);
}

static void wrong_address(void **state)
{
    (void)state;
    uint8_t address[DDSTORE__OFI_ADDRESS_MAX], byte = 0;
    ddstore__ofi_peer *p;
    memcpy(address, peer_process.address, sizeof(address));
    if (!strcmp(fabric, "ofi:shm"))
        address[peer_process.address_bytes - 3] ^= 1;
    else
        address[2] = 0, address[3] = 1; /* the port */
    assert_int_equal(
        ddstore__ofi_peer_open(ofi, address, peer_process.address_bytes, &p, &err), 0);
    ddstore__ofi_piece piece = piece_of(&peer_process, p, 0, 1, &byte);
    int64_t begun = ddstore__now_ns();
    int rc = read_pieces(&piece, 1, 1.0);
    assert_true(rc == DDSTORE_EPEER || rc == DDSTORE_EFABRIC);
    assert_true(seconds(begun) < 5);
    ddstore__ofi_peer_close(p);
    check_rows(16, ROW, 0);
}

static void wrong_key(void **state)
{
    (void)state;
    static uint8_t memory[ROW];
    for (int which = 0; which < 2; which++) {
        ddstore__ofi_piece piece = piece_of(&peer_process, peer, 0, ROW, memory);
        memset(memory, 0, sizeof(memory));
        piece.key ^= which == 0 ? 1 : 0;
        piece.address += which == 1 ? TARGET_BYTES - 100 : 0; /* past the end */
        ddstore__ofi_job job = {.pieces = &piece,
                                .n = 1,
                                .timeout_ns = 10 * DDSTORE__S,
                                .late = late_alive};
        int rc = ddstore__ofi_read(ofi, &job, &err);
        if (strcmp(fabric, "ofi:shm") != 0)        /* it looks at no key */
            assert_int_equal(rc, DDSTORE_EFABRIC); /* the peer is not to blame */
        check_rows(16, ROW, 0);
    }
}

/* ---- waits that end ---- */

static int64_t interrupt_at;

static int interrupt(void *arg)
{
    (void)arg;
    return ddstore__now_ns() >= interrupt_at;
}

static void ended_waits(void **state)
{
    (void)state;
    if (!strcmp(fabric, "ofi:shm"))
        skip();
    uint8_t *memory = malloc(ROW); /* bytes may come late: never freed */
    atomic_int closed = 1;
    ddstore__ofi_piece piece = piece_of(&peer_process, peer, 0, ROW, memory);
    ddstore__ofi_job job = {.pieces = &piece, .n = 1, .timeout_ns = 20 * DDSTORE__S};
    stop(&peer_process);
    int64_t begun = ddstore__now_ns();
    interrupt_at = begun + 300 * DDSTORE__MS;
    ddstore_set_interrupt(interrupt, NULL);
    int rc = ddstore__ofi_read(ofi, &job, &err);
    ddstore_set_interrupt(NULL, NULL);
    double took = seconds(begun);
    begun = ddstore__now_ns();
    job.closed = &closed;
    int rc_closed = ddstore__ofi_read(ofi, &job, &err);
    double took_closed = seconds(begun);
    kill(peer_process.pid, SIGCONT);
    assert_int_equal(rc, DDSTORE_EINTR);
    assert_int_equal(rc_closed, DDSTORE_ECLOSED);
    assert_true(took < 1.5 && took_closed < 1.5);
    check_rows(128, ROW, 0);
    for (int i = 0; i < 500 && ddstore__ofi_reap(ofi); i++)
        usleep(10000);
    assert_int_equal(ofi->n_aside, 0);
    assert_true(right(memory, 0, ROW));
    free(memory);
}

/* ---- running ---- */

static int run(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(stopped_target), CASE(abandoned_read), CASE(closed_half_way),
        CASE(wrong_address),  CASE(wrong_key),      CASE(ended_waits),
        CASE(killed_target),
    };
    return cmocka_run_group_tests_name(fabric, tests, provider_setup,
                                       provider_teardown);
}

int main(int argc, char **argv)
{
    return over_providers(argc, argv, run);
}

/* transport/ofi between two healthy processes, on each software provider of libfabric.
 */
#include "ofi_pair.h"

static void sizes(void **state)
{
    (void)state;
    check_rows(0, 1, 0);
    check_rows(1, 1, 0);
    check_rows(1, ROW, 0);
    check_rows(1, 1 << 20, 0);
    check_rows(1, (20 << 20) + 5, 3);
    uint8_t byte = 0;
    ddstore__ofi_piece pieces[] = {piece_of(&peer_process, peer, 5, 0, &byte),
                                   piece_of(&peer_process, peer, 9, 1, &byte)};
    assert_int_equal(read_pieces(pieces, 2, 5), 0);
    assert_int_equal(byte, expected(9));
}

static void batches(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        check_rows(128, ROW, 0);
    check_rows(5000, 200, 0); /* more than the queues hold */
    check_rows(64, ROW, 1);
    check_rows(64, ROW + 1, 7);
}

static void split(void **state)
{
    (void)state;
    uint64_t limit = ofi->max_piece;
    ofi->max_piece = 4096;
    check_rows(3, 3000000, 0);
    check_rows(2, 3000001, 5);
    ofi->max_piece = limit;
}

static void *read_much(void *arg)
{
    size_t first = *(size_t *)arg;
    uint8_t *memory = malloc(128 * ROW);
    ddstore__ofi_piece pieces[128];
    bool fine = true;
    for (size_t turn = 0; turn < 100 && fine; turn++) {
        for (size_t i = 0; i < 128; i++)
            pieces[i] =
                piece_of(&peer_process, peer, some_offset(first + turn + i, ROW), ROW,
                         memory + i * ROW);
        ddstore__ofi_job job = {
            .pieces = pieces, .n = 128, .timeout_ns = 20 * DDSTORE__S};
        ddstore_error why = {0};
        fine = ddstore__ofi_read(ofi, &job, &why) == 0;
        if (!fine)
            print_message("%s\n", why.message);
        for (size_t i = 0; i < 128 && fine; i++)
            fine = right(memory + i * ROW, some_offset(first + turn + i, ROW), ROW);
    }
    free(memory);
    return fine ? NULL : arg;
}

static void threads(void **state)
{
    (void)state;
    if (!strcmp(fabric, "ofi:sockets"))
        skip(); /* two endpoints at once: it loses a read in one run of a hundred */
    pthread_t thread[2];
    size_t first[2] = {1, 1000};
    void *bad;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_much, &first[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
}

/* Destinations registered, or not, where the provider wants them registered: which none
 * of these does, so it is made to believe so. */
static void local_registration(void **state)
{
    (void)state;
    uint64_t mode = ofi->mr_mode;
    ofi->mr_mode |= FI_MR_LOCAL;
    check_rows(300, ROW, 0);   /* bounce slots, more than there are */
    check_rows(3, 1 << 20, 0); /* registered in one */
    check_rows(1, 100000, 1);  /* registered alone */
    uint8_t *memory = malloc(1 << 20);
    assert_int_equal(ddstore__ofi_register(ofi, memory, 1 << 20, &err), 0);
    assert_int_equal(ddstore__ofi_register(ofi, memory, 1 << 20, &err), 0);
    assert_int_equal(ofi->n_ranges, 1);
    ddstore__ofi_piece pieces[] = {
        piece_of(&peer_process, peer, 100, 500000, memory + 1),
        piece_of(&peer_process, peer, 77, 100, memory + 600000)};
    ddstore__ofi_job job = {.pieces = pieces, .n = 2, .timeout_ns = 5 * DDSTORE__S};
    assert_int_equal(ddstore__ofi_read(ofi, &job, &err), 0);
    assert_int_equal(job.registrations, 0);
    assert_true(right(memory + 1, 100, 500000) && right(memory + 600000, 77, 100));
    assert_int_equal(ddstore__ofi_unregister(ofi, memory + 1, 4, &err), DDSTORE_EINVAL);
    assert_int_equal(ddstore__ofi_unregister(ofi, memory, 1 << 20, &err), 0);
    assert_int_equal(ddstore__ofi_unregister(ofi, memory, 1 << 20, &err),
                     DDSTORE_EINVAL);
    free(memory);
    ofi->mr_mode = mode;
}

static struct fi_ops_rma *true_rma;

static ssize_t refuse_long(struct fid_ep *ep, void *buf, size_t len, void *desc,
                           fi_addr_t from, uint64_t addr, uint64_t key, void *context)
{
    static unsigned count;
    if (len > 2 << 20)
        return -FI_EMSGSIZE;
    if (count++ % 3 == 0)
        return -FI_EAGAIN;
    return true_rma->read(ep, buf, len, desc, from, addr, key, context);
}

static void too_long(void **state)
{
    (void)state;
    uint64_t limit = ofi->max_piece;
    ddstore__ofi_reader *reader = ofi->idle;
    assert_non_null(reader);
    true_rma = reader->ep->rma;
    struct fi_ops_rma ops = *true_rma;
    ops.read = refuse_long;
    reader->ep->rma = &ops;
    ofi->max_piece = 3 << 20;
    check_rows(2, 7000000, 0);
    assert_int_equal(ofi->max_piece, 3 << 19);
    ofi->max_piece = 8 << 20; /* half of it is refused again */
    static uint8_t memory[8 << 20];
    ddstore__ofi_piece piece = piece_of(&peer_process, peer, 0, sizeof(memory), memory);
    assert_int_equal(read_pieces(&piece, 1, 5), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "too long"));
    reader->ep->rma = true_rma;
    ofi->max_piece = limit;
    check_rows(1, 4 << 20, 0);
}

static void busy_target(void **state)
{
    (void)state;
    target spinning = {0};
    ddstore__ofi_peer *p = NULL;
    uint8_t memory[ROW];
    assert_true(target_start(&spinning, fabric, "spin"));
    assert_int_equal(
        ddstore__ofi_peer_open(ofi, spinning.address, spinning.address_bytes, &p, &err),
        0);
    for (uint64_t i = 0; i < 50; i++) {
        ddstore__ofi_piece piece = piece_of(&spinning, p, i * 1000, ROW, memory);
        assert_int_equal(read_pieces(&piece, 1, 10), 0);
        assert_true(right(memory, i * 1000, ROW));
    }
    ddstore__ofi_peer_close(p);
    target_stop(&spinning, SIGKILL);
}

static long cpu_ticks(pid_t pid)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(text, sizeof(text), f) && strrchr(text, ')'))
        sscanf(strrchr(text, ')') + 2,
               "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    if (f)
        fclose(f);
    return (long)(user + system);
}

static void idle_target(void **state)
{
    (void)state;
    if (!ofi->can_sleep)
        skip(); /* nothing to sleep on: it has to look */
    usleep(200000);
    long before = cpu_ticks(peer_process.pid);
    sleep(2);
    assert_in_range(cpu_ticks(peer_process.pid) - before, 0, 2); /* of 200 */
}

static void forked(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        uint8_t byte;
        ddstore__ofi_piece piece = piece_of(&peer_process, peer, 0, 1, &byte);
        int rc = read_pieces(&piece, 1, 1.0);
        ddstore__ofi_drop(ofi);
        ddstore__ofi_peer_close(peer);
        _exit(rc == DDSTORE_EFORKED ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    check_rows(128, ROW, 0);
}

/* ---- running ---- */

static int run(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(sizes),
        CASE(batches),
        CASE(split),
        CASE(threads),
        CASE(local_registration),
        CASE(too_long),
        CASE(busy_target),
        CASE(idle_target),
        CASE(forked),
    };
    return cmocka_run_group_tests_name(fabric, tests, provider_setup,
                                       provider_teardown);
}

int main(int argc, char **argv)
{
    return over_providers(argc, argv, run);
}

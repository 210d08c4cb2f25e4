/* What test_ofi and test_ofi_faults share: this process, another, a provider between
 * them. */
#ifndef OFI_PAIR_H
#define OFI_PAIR_H

#include "ofi_target.h"

#include <setjmp.h>

#include <cmocka.h>

#define ROW          3000
#define SECONDS_EACH 60

static const char *const providers[] = {"ofi:tcp;ofi_rxm", "ofi:sockets", "ofi:net",
                                        "ofi:tcp", "ofi:shm"};

static const char *fabric; /* the one being tested */
static ddstore__ofi *ofi;
static target peer_process;
static ddstore__ofi_peer *peer;
static ddstore_error err;

/* ---- help ---- */

static inline ddstore__ofi_piece piece_of(const target *t, ddstore__ofi_peer *p,
                                          uint64_t at, uint64_t bytes, uint8_t *dst)
{
    return (ddstore__ofi_piece){.peer = p,
                                .address = t->base + at,
                                .key = t->key,
                                .bytes = bytes,
                                .dst = dst,
                                .tag = 7};
}

static inline int read_pieces(ddstore__ofi_piece *pieces, size_t n, double timeout_s)
{
    ddstore__ofi_job job = {
        .pieces = pieces, .n = n, .timeout_ns = (int64_t)(timeout_s * DDSTORE__S)};
    return ddstore__ofi_read(ofi, &job, &err);
}

static inline uint64_t some_offset(uint64_t i, uint64_t bytes)
{
    return (i * 0x2545f4914f6cdd1du >> 16) % (TARGET_BYTES - bytes);
}

/* Reads n rows of `bytes` from scattered places and looks at each byte. */
static inline void check_rows(size_t n, uint64_t bytes, size_t misalign)
{
    uint8_t *memory = malloc(n * bytes + misalign + 1);
    ddstore__ofi_piece *pieces = calloc(n + 1, sizeof(*pieces));
    assert_true(memory && pieces);
    memset(memory, 0xee, n * bytes + misalign + 1);
    for (size_t i = 0; i < n; i++)
        pieces[i] = piece_of(&peer_process, peer, some_offset(i + n, bytes), bytes,
                             memory + misalign + i * bytes);
    int rc = read_pieces(pieces, n, 20);
    if (rc != 0)
        fail_msg("%zu rows of %llu: %s", n, (unsigned long long)bytes, err.message);
    for (size_t i = 0; i < n; i++)
        assert_true(
            right(memory + misalign + i * bytes, some_offset(i + n, bytes), bytes));
    assert_int_equal(memory[n * bytes + misalign], 0xee);
    free(memory);
    free(pieces);
}

static inline double seconds(int64_t since)
{
    return (double)(ddstore__now_ns() - since) / 1e9;
}

static inline int each_setup(void **state)
{
    (void)state;
    alarm(SECONDS_EACH);
    err = (ddstore_error){0};
    return 0;
}

/* ---- running ---- */

static inline int provider_setup(void **state)
{
    (void)state;
    if (!target_start(&peer_process, fabric, "sleep"))
        return -1;
    return ddstore__ofi_peer_open(ofi, peer_process.address, peer_process.address_bytes,
                                  &peer, &err);
}

static inline int provider_teardown(void **state)
{
    (void)state;
    alarm(SECONDS_EACH);
    ddstore__ofi_peer_close(peer);
    ddstore__ofi_close(ofi);
    return target_stop(&peer_process, 0) == 0 ? 0 : -1;
}

#define CASE(f) cmocka_unit_test_setup(f, each_setup)

/* Calls run() for each provider that is here; main's value. */
static inline int over_providers(int argc, char **argv, int (*run)(void))
{
    int failed = 0, ran = 0;
    if (argc == 4 && strcmp(argv[1], "target") == 0)
        return target_main(argv[2], argv[3]);
    if (argc == 3) /* PROVIDER TEST */
        cmocka_set_test_filter(argv[2]);
    for (size_t i = 0; i < DDSTORE__COUNT(providers); i++) {
        fabric = providers[i];
        if (argc > 1 && strcmp(argv[1], fabric) != 0)
            continue;
        if (open_provider(fabric, "", &ofi, &err) != 0) {
            printf("%s: not here: %s\n", fabric, err.message);
            continue;
        }
        if (strcmp(fabric, "ofi:tcp") == 0 && strcmp(ofi->provider, "tcp") != 0) {
            printf("%s: is %s here\n", fabric, ofi->provider);
            ddstore__ofi_close(ofi);
            continue;
        }
        failed += run();
        ran++;
    }
    if (argc == 1 && ran < 2)
        printf("only %d of libfabric's software providers are here\n", ran);
    return failed || (argc == 1 && ran < 2);
}

#endif

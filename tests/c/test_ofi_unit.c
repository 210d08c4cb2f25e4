/* transport/ofi in one process: loading, choosing, keys, registered ranges. */
#include "ofi_target.h"

#include <setjmp.h>
#include <sys/stat.h>

#include <cmocka.h>

static ddstore_error err;

static int open_with(const char *fabric, const char *iface, const char *library,
                     ddstore__ofi **out)
{
    ddstore_setting given[] = {{"DDSTORE_FABRIC", fabric},
                               {"FABRIC_IFACE", iface},
                               {"DDSTORE_LIBFABRIC", library}};
    ddstore__settings settings;
    *out = NULL;
    int rc = ddstore__settings_load(&settings, given, DDSTORE__COUNT(given), &err);
    if (rc == 0)
        rc = ddstore__ofi_open(&settings, "", out, &err);
    ddstore__settings_free(&settings);
    return rc;
}

static void handler(int sig)
{
    (void)sig;
}

/* Runs first: libfabric is loaded once a process. */
static void loading(void **state)
{
    (void)state;
    struct sigaction before[NSIG], after;
    ddstore__ofi *ofi;
    assert_int_equal(open_with("ofi:sockets", "", "/nowhere/libfabric.so", &ofi),
                     DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "/nowhere/libfabric.so"));
    assert_int_equal(open_with("ofi:sockets", "", "libc.so.6", &ofi), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "no libfabric"));
    signal(SIGTERM, handler);
    for (int i = 1; i < NSIG; i++)
        if (sigaction(i, NULL, &before[i]) != 0)
            before[i].sa_handler = SIG_ERR;
    assert_int_equal(open_with("ofi:sockets", "", "", &ofi), 0);
    for (int i = 1; i < NSIG; i++)
        if (before[i].sa_handler != SIG_ERR && sigaction(i, NULL, &after) == 0)
            assert_ptr_equal(after.sa_handler, before[i].sa_handler);
    sigaction(SIGINT, NULL, &after);
    assert_ptr_equal(after.sa_handler, SIG_DFL);
    ddstore__ofi_close(ofi);
    assert_int_equal(open_with("ofi:sockets", "", "/nowhere/libfabric.so", &ofi),
                     DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "has loaded"));
}

static void not_asked_for(void **state)
{
    (void)state;
    ddstore__ofi *ofi = (ddstore__ofi *)1;
    assert_int_equal(open_with("tcp", "", "", &ofi), 0);
    assert_null(ofi);
    ddstore__ofi_close(NULL);
    if (ddstore__ofi_hardware("", NULL))
        skip();
    assert_int_equal(open_with("auto", "", "", &ofi), 0);
    assert_null(ofi);
}

static void refusals(void **state)
{
    (void)state;
    ddstore__ofi *ofi;
    assert_int_equal(open_with("ofi:nonsense", "", "", &ofi), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "not asked for: "));
    assert_non_null(strstr(err.message, "sockets"));
    assert_int_equal(open_with("ofi:sockets", "nic9", "", &ofi), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "not on FABRIC_IFACE=nic9"));
    setenv("FI_PROVIDER", "sockets", 1); /* too late for libfabric, but it is named */
    assert_int_equal(open_with("ofi:nonsense", "", "", &ofi), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "FI_PROVIDER=sockets is set"));
    unsetenv("FI_PROVIDER");
}

static void by_iface(void **state)
{
    (void)state;
    ddstore__ofi *ofi;
    assert_int_equal(open_with("ofi:sockets", "lo", "", &ofi), 0);
    assert_string_equal(ofi->domain_name, "lo");
    ddstore__ofi_close(ofi);
}

static void names(void **state)
{
    (void)state;
    assert_true(ddstore__ofi_name_matches("tcp;ofi_rxm", "tcp"));
    assert_true(ddstore__ofi_name_matches("tcp;ofi_rxm", "ofi_rxm;tcp"));
    assert_true(ddstore__ofi_name_matches("tcp", "tcp"));
    assert_false(ddstore__ofi_name_matches("tcp", "tcp;ofi_rxm"));
    assert_false(ddstore__ofi_name_matches("tcp2;ofi_rxm", "tcp"));
    assert_false(ddstore__ofi_name_matches("net;ofi_rxm", "tcp;ofi_rxm"));
    assert_false(ddstore__ofi_name_matches("psm2", "psm"));
}

/* Interfaces as hardware providers name them; only what fi_info carries is looked at.
 */
static bool on_iface(const char *provider, const char *domain, const char *iface)
{
    struct fi_fabric_attr fabric = {.prov_name = (char *)(uintptr_t)provider};
    struct fi_domain_attr attr = {.name = (char *)(uintptr_t)domain};
    struct fi_info info = {.fabric_attr = &fabric, .domain_attr = &attr};
    return ddstore__ofi_on_iface(&info, iface);
}

static void interfaces(void **state)
{
    (void)state;
    assert_true(on_iface("cxi", "cxi2", "hsn2"));
    assert_true(on_iface("cxi", "cxi2", "cxi2"));
    assert_false(on_iface("cxi", "cxi2", "hsn1"));
    assert_false(on_iface("cxi", "cxi2", "eth0"));
    assert_true(on_iface("tcp;ofi_rxm", "hsn0", "hsn0"));
    assert_false(on_iface("tcp;ofi_rxm", "eth0", "eth1"));
    assert_true(on_iface("verbs;ofi_rxm", "mlx5_0", "mlx5_0"));
    assert_true(on_iface("efa", "rdmap0s6-rdm", "rdmap0s6"));
    assert_true(on_iface("shm", "shm", "eth0"));
}

static void hardware(void **state)
{
    (void)state;
    char root[] = "/tmp/test_ofi_XXXXXX", path[256];
    assert_non_null(mkdtemp(root));
    assert_false(ddstore__ofi_hardware(root, NULL));
    static const char *const dirs[] = {"/sys", "/sys/class", "/sys/class/infiniband",
                                       "/sys/class/infiniband/mlx5_0"};
    for (size_t i = 0; i < DDSTORE__COUNT(dirs); i++) {
        snprintf(path, sizeof(path), "%s%s", root, dirs[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    assert_true(ddstore__ofi_hardware(root, NULL));
    assert_true(ddstore__ofi_hardware(root, "verbs"));
    assert_false(ddstore__ofi_hardware(root, "cxi"));
    assert_false(ddstore__ofi_hardware(root, "opx"));
    for (size_t i = DDSTORE__COUNT(dirs); i-- > 0;) {
        snprintf(path, sizeof(path), "%s%s", root, dirs[i]);
        rmdir(path);
    }
    rmdir(root);
}

static void keys(void **state)
{
    (void)state;
    static bool seen[65536];
    ddstore__ofi_keys k = {.secret = {1, 2, 3}};
    for (int i = 0; i < 65536; i++) {
        uint64_t key = ddstore__ofi_next_key(&k, 2);
        assert_in_range(key, 0, 65535);
        assert_false(seen[key]);
        seen[key] = true;
    }
    ddstore__ofi_keys wide = {.secret = {4}};
    uint64_t first = ddstore__ofi_next_key(&wide, 8),
             second = ddstore__ofi_next_key(&wide, 8);
    assert_true(first >> 32 && second >> 32 && first != second);
}

static void ranges(void **state)
{
    (void)state;
    ddstore__ofi *ofi;
    static uint8_t m[1000];
    assert_int_equal(open_with("ofi:sockets", "", "", &ofi), 0);
    assert_int_equal(ddstore__ofi_register(ofi, m + 100, 100, &err), 0);
    assert_int_equal(ddstore__ofi_register(ofi, m, 1000, &err), 0);
    assert_int_equal(ddstore__ofi_register(ofi, m + 100, 50, &err), 0);
    assert_int_equal(ddstore__ofi_register(ofi, m + 100, 100, &err), 0);
    assert_int_equal(ofi->n_ranges, 3);
    assert_int_equal(ddstore__ofi_register(ofi, m, 0, &err), DDSTORE_EINVAL);
    assert_int_equal(ddstore__ofi_unregister(ofi, m, 999, &err), DDSTORE_EINVAL);
    assert_int_equal(ddstore__ofi_unregister(ofi, m, 1000, &err), 0);
    assert_int_equal(ddstore__ofi_unregister(ofi, m + 100, 50, &err), 0);
    assert_int_equal(ofi->n_ranges, 1);
    ddstore__ofi_close(ofi);
}

static void probe(void **state)
{
    (void)state;
    ddstore_setting given = {"DDSTORE_FABRIC", "ofi:sockets"};
    ddstore__settings settings;
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(ddstore__settings_load(&settings, &given, 1, &err), 0);
    assert_int_equal(ddstore__ofi_probe(&settings, "", &text, &bytes), 0);
    assert_int_equal(strlen(text), bytes);
    assert_non_null(strstr(text, "libfabric\t"));
    assert_non_null(strstr(text, "provider\tsockets on "));
    assert_non_null(strstr(text, ": taken\n"));
    free(text);
    ddstore__settings_free(&settings);
}

/* How far behind the candidates on lo are with that interface as the nearest. */
static int rank_on_lo(const ddstore__settings *settings, const ddstore__ofi_api *api,
                      const char *nearest)
{
    ddstore__ofi_choice choice;
    int rank = -1;
    assert_int_equal(ddstore__ofi_choose(settings, nearest, api, &choice, &err), 0);
    for (size_t i = 0; i < choice.n; i++)
        if (choice.all[i].wanted && ddstore__ofi_on_iface(choice.all[i].info, "lo"))
            rank = choice.all[i].rank / 64; /* less its place in the list */
    ddstore__ofi_choice_free(&choice);
    assert_true(rank >= 0);
    return rank;
}

static void nearest(void **state)
{
    (void)state;
    ddstore_setting given = {"DDSTORE_FABRIC", "ofi:sockets"};
    ddstore__settings settings;
    const ddstore__ofi_api *api;
    assert_int_equal(ddstore__settings_load(&settings, &given, 1, &err), 0);
    assert_int_equal(ddstore__ofi_load(&settings, &api, &err), 0);
    int plain = rank_on_lo(&settings, api, "");
    assert_int_equal(rank_on_lo(&settings, api, "lo"), plain);
    assert_int_equal(rank_on_lo(&settings, api, "another"), plain + 200);
    ddstore__settings_free(&settings);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading),  cmocka_unit_test(not_asked_for),
        cmocka_unit_test(refusals), cmocka_unit_test(by_iface),
        cmocka_unit_test(names),    cmocka_unit_test(interfaces),
        cmocka_unit_test(hardware), cmocka_unit_test(keys),
        cmocka_unit_test(ranges),   cmocka_unit_test(probe),
        cmocka_unit_test(nearest),
    };
    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

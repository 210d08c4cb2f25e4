/* Interface choice on this host, whatever it has: what is asked for, and what is said.
 */
#include "support.h"

#include "iface.h"

#include <net/if.h>

static ddstore__settings s;
static ddstore__address address[DDSTORE__ADDRESSES];
static char name[IF_NAMESIZE];
static size_t n;
static bool nearest;
static const char *nic_map = "";
static char logged[2048];

static void note(void *arg, int level, const char *message)
{
    (void)arg;
    if (level == DDSTORE_LOG_WARN)
        snprintf(logged, sizeof(logged), "%s", message);
}

static int choose(const char *iface, const char *fabric)
{
    ddstore_setting given[] = {{"FABRIC_IFACE", iface},
                               {"DDSTORE_FABRIC", fabric},
                               {"DDSTORE_NIC_MAP", nic_map}};
    ddstore__settings_free(&s);
    assert_int_equal(ddstore__settings_load(&s, given, 3, &fault), 0);
    n = 99;
    return ddstore__iface_choose(&s, address, DDSTORE__ADDRESSES, &n, name, &nearest,
                                 &fault);
}

static void some_interface_is_chosen(void **state)
{
    (void)state;
    assert_int_equal(choose("", "auto"), 0);
    assert_in_range(n, 1, DDSTORE__ADDRESSES);
    assert_true(if_nametoindex(name) > 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(address[i].family == 4 || address[i].family == 6);
        assert_int_equal(address[i].port, 0);
        assert_true(ddstore__iface_is_near(&address[i]));
    }
}

static void the_named_one_is_taken(void **state)
{
    (void)state;
    assert_int_equal(choose("lo", "tcp"), 0);
    assert_string_equal(name, "lo");
    for (size_t i = 0; i < n; i++)
        assert_true(address[i].family == 4 ? address[i].ip[0] == 127
                                           : address[i].ip[15] == 1);
}

static void fewer_places_are_respected(void **state)
{
    (void)state;
    ddstore__address guarded[2] = {{0}, {.family = 99}};
    assert_int_equal(choose("", "auto"), 0);
    assert_int_equal(ddstore__iface_choose(&s, guarded, 1, &n, name, &nearest, &fault),
                     0);
    assert_int_equal(n, 1);
    assert_int_equal(guarded[1].family, 99);
}

static void an_unknown_one_lists_all(void **state)
{
    (void)state;
    CHECK_FAILS(choose("nosuch7", "tcp"), DDSTORE_EFABRIC, "nosuch7", "lo 127.0.0.1",
                "names another");
    CHECK_FAILS(choose("hsn77", "hsn"), DDSTORE_EFABRIC, "hsn77");
}

static void high_speed_is_not_guessed(void **state)
{
    (void)state;
    if (if_nametoindex("hsn0"))
        return;
    CHECK_FAILS(choose("", "hsn"), DDSTORE_EFABRIC, "asks for hsn interfaces");
}

/* The loopback stands for a NIC: it is there everywhere, and comes last otherwise. */
static void the_map_puts_its_nic_first(void **state)
{
    (void)state;
    size_t others;
    ddstore_set_logger(note, NULL, DDSTORE_LOG_WARN);
    assert_int_equal(choose("", "auto"), 0);
    assert_false(nearest);
    others = strcmp(name, "lo") == 0 ? 0 : n;
    nic_map = "lo=0-8191";
    assert_int_equal(choose("", "auto"), 0);
    assert_true(nearest);
    assert_string_equal(name, "lo");
    assert_true(address[0].family == 4 && address[0].ip[0] == 127);
    assert_true(n > others);
    nic_map = "hsn5=8000;lo=8001"; /* no CPU of ours: the first takes its turn */
    assert_int_equal(choose("", "auto"), 0);
    assert_non_null(strstr(logged, "hsn5"));
}

static void the_named_one_wins_over_the_map(void **state)
{
    (void)state;
    nic_map = "nosuch7=0-8191";
    ddstore_set_logger(note, NULL, DDSTORE_LOG_WARN);
    assert_int_equal(choose("lo", "tcp"), 0);
    assert_string_equal(name, "lo");
    assert_false(nearest);
    assert_string_equal(logged, "");
    nic_map = "lo=0-8191,";
    CHECK_FAILS(choose("lo", "tcp"), DDSTORE_EINVAL, "DDSTORE_NIC_MAP", "character 11");
    CHECK_FAILS(choose("", "tcp"), DDSTORE_EINVAL, "DDSTORE_NIC_MAP", "character 11");
}

static void a_nic_that_cant_be_used_changes_nothing(void **state)
{
    (void)state;
    char before[IF_NAMESIZE];
    ddstore_set_logger(note, NULL, DDSTORE_LOG_WARN);
    assert_int_equal(choose("", "auto"), 0);
    assert_string_equal(logged, "");
    memcpy(before, name, sizeof(before));
    size_t n_before = n;
    nic_map = "nosuch7=0-8191";
    assert_int_equal(choose("", "auto"), 0);
    assert_string_equal(name, before);
    assert_int_equal(n, n_before);
    assert_false(nearest);
    assert_non_null(strstr(logged, "nosuch7"));
    assert_non_null(strstr(logged, "there is no such interface"));
    nic_map = "lo=0-8191";
    CHECK_FAILS(choose("", "hsn"), DDSTORE_EFABRIC, "asks for hsn interfaces");
    assert_non_null(strstr(logged, "lo for this process"));
    assert_non_null(strstr(logged, "asks for hsn interfaces"));
}

static void the_probe_knows_the_map(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    nic_map = "lo=0-8191";
    assert_int_equal(choose("", "auto"), 0);
    ddstore__iface_probe(&s, &b, name);
    ddstore__add_bytes(&b, "", 1);
    assert_string_equal(name, "lo");
    const char *first =
        "interface\tlo 127.0.0.1: taken, it is near this process's CPUs\n";
    assert_memory_equal(b.data, first, strlen(first));
    free(b.data);
    b = (ddstore__buffer){0};
    free(s.nic_map);
    s.nic_map = strdup("lo=");
    ddstore__iface_probe(&s, &b, name);
    ddstore__add_bytes(&b, "", 1);
    assert_string_equal(name, "");
    assert_non_null(strstr((char *)b.data, "nic map\trefused: DDSTORE_NIC_MAP"));
    assert_non_null(strstr((char *)b.data, "interface\tlo 127.0.0.1: "));
    free(b.data);
}

static void far_addresses_are_not_near(void **state)
{
    (void)state;
    ddstore__address a = {.family = 4, .ip = {203, 0, 113, 9}};
    assert_false(ddstore__iface_is_near(&a));
    a = (ddstore__address){.family = 4, .ip = {127, 1, 2, 3}};
    assert_true(ddstore__iface_is_near(&a));
    a = (ddstore__address){.family = 6, .ip = {0x20, 1, 0x0d, 0xb8}};
    assert_false(ddstore__iface_is_near(&a));
    a = (ddstore__address){0};
    assert_false(ddstore__iface_is_near(&a));
}

static void the_probe_tells_each_with_a_reason(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    assert_int_equal(choose("", "auto"), 0);
    ddstore__iface_probe(&s, &b, name);
    assert_string_equal(name, "");
    ddstore__add_bytes(&b, "", 1);
    assert_non_null(strstr((char *)b.data, "interface\tlo 127.0.0.1: "));
    assert_non_null(strstr((char *)b.data, ": taken, "));
    for (char *line = strtok((char *)b.data, "\n"); line; line = strtok(NULL, "\n")) {
        assert_memory_equal(line, "interface\t", 10);
        assert_true(strstr(line, ": taken, ") || strstr(line, ": dropped, "));
    }
    free(b.data);
}

static void the_machine_is_probed(void **state)
{
    (void)state;
    char *text = NULL;
    assert_int_equal(ddstore_probe(&text, &fault), 0);
    assert_non_null(strstr(text, "libddstore\t" DDSTORE_VERSION));
    assert_non_null(strstr(text, "limit nofile\t"));
    assert_non_null(strstr(text, "memory\t"));
    assert_non_null(strstr(text, "interface\tlo"));
    ddstore_release(text);
    setenv("DDSTORE_SHM", "maybe", 1);
    CHECK_FAILS(ddstore_probe(&text, &fault), DDSTORE_EINVAL, "DDSTORE_SHM=maybe");
    unsetenv("DDSTORE_SHM");
}

static int free_last(void **state)
{
    ddstore__settings_free(&s);
    nic_map = "";
    *logged = '\0';
    return teardown(state);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, free_last)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(some_interface_is_chosen),
        TEST(the_named_one_is_taken),
        TEST(fewer_places_are_respected),
        TEST(an_unknown_one_lists_all),
        TEST(high_speed_is_not_guessed),
        TEST(far_addresses_are_not_near),
        TEST(the_probe_tells_each_with_a_reason),
        TEST(the_machine_is_probed),
        TEST(the_map_puts_its_nic_first),
        TEST(the_named_one_wins_over_the_map),
        TEST(the_probe_knows_the_map),
        TEST(a_nic_that_cant_be_used_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

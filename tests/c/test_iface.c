/* Interface choice on this host, whatever it has: what is asked for, and what is said.
 */
#include "support.h"

#include "iface.h"

#include <net/if.h>

static ddstore__settings s;
static ddstore__address address[DDSTORE__ADDRESSES];
static char name[IF_NAMESIZE];
static size_t n;

static int choose(const char *iface, const char *fabric)
{
    ddstore_setting given[] = {{"FABRIC_IFACE", iface}, {"DDSTORE_FABRIC", fabric}};
    ddstore__settings_free(&s);
    assert_int_equal(ddstore__settings_load(&s, given, 2, &fault), 0);
    n = 99;
    return ddstore__iface_choose(&s, address, DDSTORE__ADDRESSES, &n, name, &fault);
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
    assert_int_equal(ddstore__iface_choose(&s, guarded, 1, &n, name, &fault), 0);
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
    ddstore__iface_probe(&s, &b);
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
    return teardown(state);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, free_last)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(some_interface_is_chosen),           TEST(the_named_one_is_taken),
        TEST(fewer_places_are_respected),         TEST(an_unknown_one_lists_all),
        TEST(high_speed_is_not_guessed),          TEST(far_addresses_are_not_near),
        TEST(the_probe_tells_each_with_a_reason), TEST(the_machine_is_probed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

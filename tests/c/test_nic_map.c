/* NIC maps: their text, the choice, and what hwloc tells of machines of several shapes.
 */
#include "support.h"

#include "nic_map.h"

#include <sched.h>

static ddstore_nic_map *map;
static char *text;
static char logged[4096];

static void note(void *arg, int level, const char *message)
{
    (void)arg;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof(logged) - used, "%d %s\n", level, message);
}

static int begin(void **state)
{
    static const char *const unset[] = {
        "HWLOC_XMLFILE",     "SLURM_LOCALID",   "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",   "PMI_LOCAL_RANK",  "PMIX_LOCAL_RANK",
        "PALS_LOCAL_RANKID", "LOCAL_RANK",      "DDSTORE_RANK",
        "DDSTORE_NIC_MAP",   "HWLOC_SYNTHETIC",
    };
    for (size_t i = 0; i < DDSTORE__COUNT(unset); i++)
        unsetenv(unset[i]);
    *logged = '\0';
    ddstore_set_logger(note, NULL, DDSTORE_LOG_DEBUG);
    return setup(state);
}

static int end(void **state)
{
    ddstore_nic_map_close(map);
    ddstore_release(text);
    map = NULL;
    text = NULL;
    unsetenv("HWLOC_XMLFILE");
    return teardown(state);
}

static int parse(const char *words)
{
    ddstore_nic_map_close(map);
    map = NULL;
    return ddstore_nic_map_parse(words, &map, &fault);
}

static const char *formatted(void)
{
    ddstore_release(text);
    text = NULL;
    CHECK(ddstore_nic_map_format(map, &text, &fault) == 0);
    return text;
}

/* Looks at the machine that tests/c/topology/NAME.xml describes. */
static int discover(const char *name, const char *pattern)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.xml", getenv("TEST_TOPOLOGY"), name);
    setenv("HWLOC_XMLFILE", path, 1);
    ddstore_nic_map_close(map);
    map = NULL;
    int rc = ddstore_nic_map_discover(pattern, &map, &fault);
    unsetenv("HWLOC_XMLFILE");
    return rc;
}

static ddstore_nic_cpu cpu(int number)
{
    ddstore_nic_cpu it;
    CHECK(ddstore_nic_map_cpu(map, number, &it) == 0);
    return it;
}

/* ---- text ---- */

static void maps_are_read_and_written(void **state)
{
    (void)state;
    static const char *const same[] = {
        "hsn0=0-15,64-79;hsn1=16-31", "lo=0-1023", "a=0",
        "en.p1:0@x=8191;b=5,7,9-10",  "a=0;b=0", /* a CPU may stand under several */
    };
    for (size_t i = 0; i < DDSTORE__COUNT(same); i++) {
        assert_int_equal(parse(same[i]), 0);
        assert_string_equal(formatted(), same[i]);
    }
    assert_int_equal(parse("b=3,1,2,0-1,7;a=63-65,64"), 0);
    assert_string_equal(formatted(), "b=0-3,7;a=63-65");
}

static void what_is_wrong_is_shown(void **state)
{
    (void)state;
    static const struct {
        const char *text, *place, *wanted;
    } bad[] = {
        {"", "character 1 (its end)", "the name of"},
        {"=0", "character 1 ('=0')", "the name of"},
        {"hsn0", "character 5 (its end)", "'='"},
        {"hsn0:0-3", "character 9 (its end)", "'='"},
        {"hsn0=", "character 6 (its end)", "number of a CPU"},
        {"hsn0=0-x;hsn1=3", "character 8 ('x;hsn1=3')", "number of a CPU"},
        {"hsn0=0,", "character 8 (its end)", "number of a CPU"},
        {"hsn0=0,,1", "character 8 (',1')", "number of a CPU"},
        {"hsn0=-1", "character 6 ('-1')", "number of a CPU"},
        {"hsn0=0x1", "character 7 ('x1')", "',', '-', ';'"},
        {"hsn0=0-3-4", "character 9 ('-4')", "',', '-', ';'"},
        {"hsn0=3-1", "character 8 ('1')", "not below the first"},
        {"hsn0=8192", "character 6 ('8192')", "0 to 8191"},
        {"hsn0=0-99999999999999999999", "character 8 ('9999", "0 to 8191"},
        {"hsn0=0 ;hsn1=1", "character 7 (' ;hsn1=1')", "',', '-', ';'"},
        {"hsn0=0; hsn1=1", "character 8 (' hsn1=1')", "the name of"},
        {"hsn0=0;", "character 8 (its end)", "the name of"},
        {"hsn0=0;hsn0=1", "character 8 ('hsn0=1')", "named only once"},
        {"an-interface-0123=0", "character 1 ('an-interface-0123=0')", "15 bytes"},
        {"../x=0", "character 3 ('/x=0')", "'='"},
    };
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++) {
        CHECK_FAILS(parse(bad[i].text), DDSTORE_EINVAL, bad[i].place, bad[i].wanted,
                    "hsn0=0-15,64-79;hsn1=16-31");
        assert_null(map);
    }
    CHECK_FAILS(parse(NULL), DDSTORE_EINVAL, "needs a text");
}

static void there_are_bounds(void **state)
{
    (void)state;
    char many[2048] = "", *at = many;
    for (int i = 0; i < 65; i++)
        at += snprintf(at, 32, "%sn%d=%d", i ? ";" : "", i, i);
    CHECK_FAILS(parse(many), DDSTORE_EINVAL, "'n64=64'", "at most 64");
    *strstr(many, ";n64") = '\0';
    assert_int_equal(parse(many), 0);
    assert_string_equal(formatted(), many);
    assert_int_equal(parse("interface-15byt=0"), 0);
    assert_string_equal(formatted(), "interface-15byt=0");
    assert_true(ddstore__nic_name_fits("interface-15byt"));
    static const char *const bad[] = {"", "interface-16byte", "a=", "a;", "a,", "a b"};
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        assert_false(ddstore__nic_name_fits(bad[i]));
}

static void each_cpu_is_told(void **state)
{
    (void)state;
    ddstore_nic_cpu it;
    assert_int_equal(parse("hsn1=4-5;hsn0=5,8191"), 0);
    it = cpu(5);
    assert_string_equal(it.nic, "hsn1");
    assert_string_equal(it.how, "given");
    assert_int_equal(it.numa, -1);
    assert_int_equal(it.nic_numa, -1);
    assert_string_equal(cpu(8191).nic, "hsn0");
    assert_int_equal(ddstore_nic_map_cpu(map, 6, &it), DDSTORE_EKEY);
    assert_int_equal(ddstore_nic_map_cpu(map, 8192, &it), DDSTORE_EINDEX);
    assert_int_equal(ddstore_nic_map_cpu(map, -1, &it), DDSTORE_EINVAL);
    assert_int_equal(parse("hsn1=4-5"), 0);
    assert_int_equal(ddstore_nic_map_cpu(map, 0, &it), DDSTORE_EKEY);
    assert_int_equal(ddstore_nic_map_cpu(map, 6, &it), DDSTORE_EINDEX);
    assert_int_equal(parse("hsn1=64"), 0);
    assert_int_equal(ddstore_nic_map_cpu(map, 5, &it), DDSTORE_EKEY);
    assert_int_equal(ddstore_nic_map_cpu(map, 65, &it), DDSTORE_EINDEX);
}

/* ---- choice ---- */

static ddstore_nic_choice pick(int first, int last, uint64_t local_rank)
{
    ddstore__cpus own = {{0}};
    ddstore_nic_choice out;
    for (int i = first; i <= last; i++)
        ddstore__cpus_add(&own, i);
    ddstore__nic_map_pick(map, &own, local_rank, &out);
    return out;
}

static void a_process_gets_the_nic_of_its_cpus(void **state)
{
    (void)state;
    assert_int_equal(parse("hsn0=0-15,64-79;hsn1=16-31;hsn2=100"), 0);
    ddstore_nic_choice it = pick(16, 20, 5);
    assert_string_equal(it.nic, "hsn1");
    assert_true(it.near);
    assert_string_equal(it.why, "it is near this process's CPUs");
    assert_string_equal(pick(79, 99, 5).nic, "hsn0");
    assert_string_equal(pick(100, 100, 5).nic, "hsn2");
}

static void several_are_spread_by_local_rank(void **state)
{
    (void)state;
    assert_int_equal(parse("hsn0=0-3;hsn1=4-7;hsn2=8-11;hsn3=12-15"), 0);
    static const char *const of_two[] = {"hsn1", "hsn2", "hsn1", "hsn2"};
    for (size_t i = 0; i < 4; i++) {
        ddstore_nic_choice it = pick(7, 8, i);
        assert_string_equal(it.nic, of_two[i]);
        assert_true(it.near);
        assert_non_null(strstr(it.why, "one of 2 near this process's CPUs"));
    }
}

static void without_a_cpu_in_the_map_nics_take_turns(void **state)
{
    (void)state;
    assert_int_equal(parse("hsn0=0-3;hsn1=4-7;hsn2=8-11"), 0);
    static const char *const turns[] = {"hsn0", "hsn1", "hsn2", "hsn0"};
    for (size_t i = 0; i < 4; i++) {
        ddstore_nic_choice it = pick(200, 300, i);
        assert_string_equal(it.nic, turns[i]);
        assert_false(it.near);
        assert_non_null(strstr(it.why, "one of 3 that take turns"));
    }
}

static void the_calling_threads_cpus_count(void **state)
{
    (void)state;
    ddstore_nic_choice it;
    char words[64];
    int own = sched_getcpu();
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    CPU_SET(own, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    snprintf(words, sizeof(words), "hsn0=%d;hsn1=%d", own + 1, own);
    assert_int_equal(parse(words), 0);
    int rc = ddstore_nic_map_choose(map, &it, &fault);
    assert_string_equal(logged, "");
    assert_int_equal(parse("hsn0=8000;hsn1=8001"), 0);
    setenv("SLURM_LOCALID", "3", 1);
    ddstore_nic_choice other;
    assert_int_equal(ddstore_nic_map_choose(map, &other, &fault), 0);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(rc, 0);
    assert_string_equal(it.nic, "hsn1");
    assert_string_equal(other.nic, "hsn1");
    assert_non_null(strstr(logged, "30 none of this process's CPUs is in the NIC map: "
                                   "hsn1 is taken, one of 2 that take turns, by local "
                                   "rank 3"));
}

static void launchers_tell_the_local_rank(void **state)
{
    (void)state;
    assert_int_equal(ddstore__local_rank(), 0);
    setenv("SLURM_LOCALID", "4", 1);
    assert_int_equal(ddstore__local_rank(), 4);
    setenv("DDSTORE_RANK", "5", 1); /* by hand: over several hosts, perhaps */
    assert_int_equal(ddstore__local_rank(), 4);
    setenv("DDSTORE_RUN_ID", "x", 1);
    assert_int_equal(ddstore__local_rank(), 5);
    static const char *const names[] = {
        "LOCAL_RANK",     "PMIX_LOCAL_RANK", "PALS_LOCAL_RANKID",
        "PMI_LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK",
    };
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++) { /* each before the last */
        char value[8];
        snprintf(value, sizeof(value), "%d", 10 + (int)i);
        setenv(names[i], value, 1);
        assert_int_equal(ddstore__local_rank(), 10 + i);
    }
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1x", 1);
    setenv("MPI_LOCALRANKID", "-1", 1);
    assert_int_equal(ddstore__local_rank(), 13);
}

/* ---- discovery ---- */

static void two_sockets_of_four_nics(void **state)
{
    (void)state;
    assert_int_equal(discover("two_by_four", NULL), 0);
    /* A fourth of a socket's cores each, both threads of them. */
    assert_string_equal(
        formatted(), "hsn0=0-3,32-35;hsn1=4-7,36-39;hsn2=8-11,40-43;hsn3=12-15,44-47;"
                     "hsn4=16-19,48-51;hsn5=20-23,52-55;hsn6=24-27,56-59;"
                     "hsn7=28-31,60-63");
    for (int i = 0; i < 64; i++) {
        ddstore_nic_cpu it = cpu(i);
        assert_string_equal(it.how, "exact");
        assert_int_equal(it.numa, i / 16 % 2);
        assert_int_equal(it.nic_numa, i / 16 % 2);
    }
    ddstore_nic_cpu it;
    assert_int_equal(ddstore_nic_map_cpu(map, 64, &it), DDSTORE_EINDEX);
}

static void a_pattern_says_which(void **state)
{
    (void)state;
    assert_int_equal(discover("two_by_four", "hsn[15]"), 0);
    assert_string_equal(formatted(), "hsn1=0-15,32-47;hsn5=16-31,48-63");
    assert_int_equal(discover("two_by_four", "nothing*,mgmt?"), 0);
    assert_string_equal(formatted(), "mgmt0=0-63");
    assert_string_equal(cpu(15).how, "exact");
    assert_string_equal(cpu(16).how, "distance");
    /* 16 cores to 3: no core is divided. */
    assert_int_equal(discover("two_by_four", "hsn[0-2]"), 0);
    assert_string_equal(formatted(), "hsn0=0-5,16-21,32-37,48-53;"
                                     "hsn1=6-10,22-26,38-42,54-58;"
                                     "hsn2=11-15,27-31,43-47,59-63");
    assert_int_equal(discover("two_by_four", ""), 0);
    assert_int_equal(map->n, 8);
    /* It is there, but at no PCI device; and there are devices of other kinds. */
    CHECK_FAILS(discover("two_by_four", "hsn-*,nvme*"), DDSTORE_EFABRIC,
                "no network interface of a PCI device", "hsn-*,nvme*");
    CHECK_FAILS(discover("four_domains", "mlx5*"), DDSTORE_EFABRIC, "mlx5*");
    CHECK_FAILS(discover("two_by_four", "hsn"), DDSTORE_EFABRIC, "like hsn:");
}

/* The job may use CPUs 4, 5, 20 and 21 only; the map has all. */
static void four_domains_and_two_nics(void **state)
{
    (void)state;
    assert_int_equal(discover("four_domains", NULL), 0);
    /* Domain 0 is nearer to 3 than to 1, and 2 to 1. */
    assert_string_equal(formatted(), "ib0=4-11,20-27;ib1=0-3,12-19,28-31");
    static const char *const how[] = {"package", "exact", "package", "exact"};
    for (int i = 0; i < 32; i++) {
        ddstore_nic_cpu it = cpu(i);
        assert_string_equal(it.how, how[i / 4 % 4]);
        assert_int_equal(it.numa, i / 4 % 4);
        assert_int_equal(it.nic_numa, i / 4 % 4 % 3 ? 1 : 3);
    }
}

static void one_nic_is_everybodys(void **state)
{
    (void)state;
    assert_int_equal(discover("one_nic", NULL), 0);
    assert_string_equal(formatted(), "enp129s0=0-7");
    assert_string_equal(cpu(3).how, "distance");
    assert_string_equal(cpu(4).how, "exact");
    assert_int_equal(cpu(3).numa, 0);
    assert_int_equal(cpu(3).nic_numa, 1);
}

static void nics_without_a_place_are_spread(void **state)
{
    (void)state;
    assert_int_equal(discover("guest", NULL), 0);
    assert_string_equal(formatted(), "eth2=0-3;eth10=4-7");
    assert_string_equal(cpu(0).how, "anywhere");
    assert_int_equal(cpu(4).nic_numa, -1);
    assert_int_equal(cpu(4).numa, 1);
}

/* hwloc loses some memory of its own where it gives up half a file. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_disable() ((void)0)
#define __lsan_enable()  ((void)0)
#endif

static int discover_from(const char *words)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/bad.xml", dir);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(words, f) >= 0 && fclose(f) == 0);
    setenv("HWLOC_XMLFILE", path, 1);
    __lsan_disable();
    int rc = ddstore_nic_map_discover(NULL, &map, &fault);
    __lsan_enable();
    return rc;
}

static void garbage_is_an_error(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "<<<garbage",
        "<topology>",
        "<?xml version=\"1.0\"?><html><body>no</body></html>",
        "<?xml version=\"1.0\"?><topology version=\"2.0\"></topology>",
        "<?xml version=\"1.0\"?><topology version=\"2.0\"><object type=\"Core\"/>"
        "</topology>",
    };
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++) {
        CHECK_FAILS(discover_from(bad[i]), DDSTORE_ESYS, "HWLOC_XMLFILE");
        assert_null(map);
    }
    CHECK_FAILS(discover("no-such-file", NULL), DDSTORE_ESYS, "no-such-file.xml");
    CHECK_FAILS(ddstore_nic_map_discover(NULL, NULL, &fault), DDSTORE_EINVAL, "place");
}

/* Half a description: an error or a map, as hwloc likes, but nothing worse. */
static void half_a_file_does_no_harm(void **state)
{
    (void)state;
    char path[4096], *whole = calloc(1, 100000);
    snprintf(path, sizeof(path), "%s/one_nic.xml", getenv("TEST_TOPOLOGY"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t bytes = fread(whole, 1, 99999, f);
    fclose(f);
    for (size_t cut = 1; cut <= 5; cut++) {
        whole[bytes * (6 - cut) / 6] = '\0';
        CHECK_FAILS(discover_from(whole), DDSTORE_ESYS, "HWLOC_XMLFILE");
    }
    free(whole);
}

/* ---- the nearest ---- */

static int nearest(const char *nic_map, const char *names, ddstore_nic_choice *out)
{
    ddstore__settings s;
    ddstore_setting given = {"DDSTORE_NIC_MAP", nic_map};
    char copy[128], *save = NULL;
    const char *list[8];
    size_t n = 0;
    snprintf(copy, sizeof(copy), "%s", names);
    for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save))
        list[n++] = p;
    CHECK(ddstore__settings_load(&s, &given, 1, &fault) == 0);
    int rc = ddstore__nic_nearest(&s, dir, list, n, out, &fault);
    ddstore__settings_free(&s);
    return rc;
}

/* Makes the test's directory look like a root with that entry in /sys. */
static void make(const char *entry)
{
    char path[256];
    snprintf(path, sizeof(path), "%s%s", dir, entry);
    for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
}

static void the_map_that_is_given_counts(void **state)
{
    (void)state;
    ddstore_nic_choice it;
    assert_int_equal(nearest("hsn7=0-8191", "eth0", &it), 0);
    assert_string_equal(it.nic, "hsn7");
    CHECK_FAILS(nearest("hsn7=0-z", "eth0", &it), DDSTORE_EINVAL, "DDSTORE_NIC_MAP",
                "character 8 ('z')");
}

static void without_fast_hardware_nothing_is_loaded(void **state)
{
    (void)state;
    ddstore_nic_choice it;
    make("/sys/class/net/eth0/device/net");
    make("/sys/class/net/hsn0/device/net");
    setenv("HWLOC_XMLFILE", "/nowhere", 1); /* an attempt would be logged */
    assert_int_equal(nearest("", "eth0 hsn0 lo", &it), 0);
    assert_string_equal(it.nic, "");
    make("/sys/class/net/eth0/device/infiniband/mlx5_0");
    assert_int_equal(nearest("", "eth0 hsn0 lo eth0", &it), 0);
    assert_string_equal(it.nic, "eth0");
    assert_string_equal(it.why, "it is the only high-speed interface");
    assert_string_equal(logged, "");
}

static void fast_ones_are_looked_up(void **state)
{
    (void)state;
    ddstore_nic_choice it;
    char path[4096];
    make("/sys/class/cxi");
    snprintf(path, sizeof(path), "%s/two_by_four.xml", getenv("TEST_TOPOLOGY"));
    setenv("HWLOC_XMLFILE", path, 1);
    assert_int_equal(nearest("", "mgmt0 hsn2 hsn3", &it), 0);
    assert_true(strcmp(it.nic, "hsn2") == 0 || strcmp(it.nic, "hsn3") == 0);
    make("/sys/class/net/ib0/device/cxi/cxi0");
    assert_int_equal(nearest("", "ib0 mgmt0 hsn3", &it), 0);
    assert_string_equal(it.nic, "hsn3"); /* there is no ib0 in the description */
    assert_string_equal(logged, "");
    setenv("HWLOC_XMLFILE", "/nowhere", 1);
    assert_int_equal(nearest("", "ib0 mgmt0 hsn3", &it), 0);
    assert_string_equal(it.nic, "");
    assert_non_null(strstr(logged, "20 which of ib0,hsn3 is nearest"));
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(maps_are_read_and_written),
        TEST(what_is_wrong_is_shown),
        TEST(there_are_bounds),
        TEST(each_cpu_is_told),
        TEST(a_process_gets_the_nic_of_its_cpus),
        TEST(several_are_spread_by_local_rank),
        TEST(without_a_cpu_in_the_map_nics_take_turns),
        TEST(the_calling_threads_cpus_count),
        TEST(launchers_tell_the_local_rank),
        TEST(the_map_that_is_given_counts),
        TEST(without_fast_hardware_nothing_is_loaded),
    };
    const struct CMUnitTest by_hwloc[] = {
        TEST(two_sockets_of_four_nics),        TEST(a_pattern_says_which),
        TEST(four_domains_and_two_nics),       TEST(one_nic_is_everybodys),
        TEST(nics_without_a_place_are_spread), TEST(garbage_is_an_error),
        TEST(half_a_file_does_no_harm),        TEST(fast_ones_are_looked_up),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (ddstore_nic_map_discover("no-such-nic", &map, &fault) != DDSTORE_EUNSUPPORTED)
        return failed + cmocka_run_group_tests(by_hwloc, NULL, NULL);
    printf("no hwloc here: %s\n", fault.message);
    return failed ? failed : 77;
}

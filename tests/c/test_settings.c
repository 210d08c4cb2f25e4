/* Settings: every kind, what is refused and how that is said, and who wins. */
#include "support.h"

#include "settings.h"

static ddstore__settings s;
static char warned[8][600];
static int n_warned;

static void note(void *arg, int level, const char *message)
{
    (void)arg, (void)level;
    if (n_warned < 8)
        snprintf(warned[n_warned++], sizeof(warned[0]), "%s", message);
}

/* Loads with one variable given by the caller. */
static int load(const char *name, const char *value)
{
    ddstore_setting given = {name, value};
    ddstore__settings_free(&s);
    return ddstore__settings_load(&s, &given, 1, &fault);
}

static void unset_ones_have_their_defaults(void **state)
{
    (void)state;
    unsetenv("DDSTORE_FABRIC");
    assert_int_equal(ddstore__settings_load(&s, NULL, 0, &fault), 0);
    assert_string_equal(s.fabric, "auto");
    assert_string_equal(s.iface, "");
    assert_string_equal(s.log, "warn");
    assert_true(s.handshake_timeout_s == 300 && s.read_timeout_s == 60);
    assert_true(s.max_read_bytes == 1u << 30 && s.alltoall_max_bytes == 2u << 20);
    assert_int_equal(s.shm, 1);
    assert_int_equal(s.rank, -1);
    ddstore__settings_free(&s);
}

static void words_are_taken_from_their_list(void **state)
{
    (void)state;
    static const char *const good[] = {"auto", "tcp", "cxi", "ofi:tcp;ofi_rxm",
                                       "ofi:x"};
    static const char *const bad[] = {"",         "TCP",  "tc", "tcp ", "tcpx",
                                      "auto|tcp", "ofi:", "|",  "NAME", "ofi"};
    for (size_t i = 0; i < DDSTORE__COUNT(good); i++) {
        assert_int_equal(load("DDSTORE_FABRIC", good[i]), 0);
        assert_string_equal(s.fabric, good[i]);
    }
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        CHECK_FAILS(load("DDSTORE_FABRIC", bad[i]), DDSTORE_EINVAL,
                    "DDSTORE_FABRIC=", bad[i], "auto|tcp|hsn");
    CHECK_FAILS(load("DDSTORE_LOG", "loud"), DDSTORE_EINVAL, "DDSTORE_LOG=loud",
                "debug|info|warn|error|off");
}

static void flags_are_0_or_1(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "2", "-1", "yes", "1 ", " 1", "0x1", "1.0"};
    assert_int_equal(load("DDSTORE_SHM", "0"), 0);
    assert_int_equal(s.shm, 0);
    assert_int_equal(load("DDSTORE_SHM", "1"), 0);
    assert_int_equal(s.shm, 1);
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        CHECK_FAILS(load("DDSTORE_SHM", bad[i]), DDSTORE_EINVAL, "DDSTORE_SHM=", bad[i],
                    "0 or 1");
}

static void counts_are_whole_numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "2147483648", "-2", "7x", "1e3", "7 ", "\t7", "99999999999999999999999"};
    assert_int_equal(load("DDSTORE_SIZE", "2147483647"), 0);
    assert_int_equal(s.size, 2147483647);
    assert_int_equal(load("DDSTORE_RANK", "-1"), 0);
    assert_int_equal(s.rank, -1);
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        CHECK_FAILS(load("DDSTORE_SIZE", bad[i]), DDSTORE_EINVAL,
                    "DDSTORE_SIZE=", bad[i], "an integer from 0 to 2147483647");
}

static void bytes_take_suffixes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1},           {"4096", 4096},
                {"4K", 4096},       {"4k", 4096},
                {"3M", 3u << 20},   {"3m", 3u << 20},
                {"5G", 5ull << 30}, {"1000000000000000000", 1000000000000000000ull}};
    static const char *const bad[] = {"",
                                      "0",
                                      "-1",
                                      "4KB",
                                      "K",
                                      "4T",
                                      "4 K",
                                      "1.5",
                                      "0x10",
                                      "+4",
                                      "1000000000000000001000",
                                      "99999999999G",
                                      "18014398509481984K"};
    for (size_t i = 0; i < DDSTORE__COUNT(good); i++) {
        assert_int_equal(load("DDSTORE_MAX_READ_BYTES", good[i].text), 0);
        assert_true(s.max_read_bytes == good[i].bytes);
    }
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        CHECK_FAILS(load("DDSTORE_MAX_READ_BYTES", bad[i]), DDSTORE_EINVAL,
                    "DDSTORE_MAX_READ_BYTES=", bad[i], "K, M and G");
    CHECK_FAILS(load("DDSTORE_ALLTOALL_MAX_BYTES", "2G"), DDSTORE_EINVAL, "2.15e+09");
}

static void seconds_take_fractions(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   "0",    "-1",  "nan", "inf",
                                      "1s", "1e10", "1,5", " 1",  "0.0001"};
    assert_int_equal(load("DDSTORE_READ_TIMEOUT_S", "0.25"), 0);
    assert_true(s.read_timeout_s == 0.25);
    assert_int_equal(load("DDSTORE_READ_TIMEOUT_S", "1e9"), 0);
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        CHECK_FAILS(load("DDSTORE_READ_TIMEOUT_S", bad[i]), DDSTORE_EINVAL,
                    "DDSTORE_READ_TIMEOUT_S=", bad[i], "seconds from 0.001 to 1e+09");
}

static void texts_may_be_anything(void **state)
{
    (void)state;
    static char text[20000];
    memset(text, 'x', sizeof(text) - 1);
    assert_int_equal(load("DDSTORE_NIC_MAP", text), 0);
    assert_string_equal(s.nic_map, text);
    CHECK_FAILS(load("DDSTORE_FABRIC", text), DDSTORE_EINVAL, "DDSTORE_FABRIC=xxx",
                "one of");
}

static void the_caller_wins_over_the_environment(void **state)
{
    (void)state;
    setenv("DDSTORE_READ_TIMEOUT_S", "7", 1);
    assert_int_equal(load("DDSTORE_SHM", "0"), 0);
    assert_true(s.read_timeout_s == 7);
    assert_int_equal(load("DDSTORE_READ_TIMEOUT_S", "8"), 0);
    assert_true(s.read_timeout_s == 8);
    ddstore_setting twice[] = {{"DDSTORE_SHM", "0"}, {"DDSTORE_SHM", "1"}};
    ddstore__settings_free(&s);
    assert_int_equal(ddstore__settings_load(&s, twice, 2, &fault), 0);
    assert_int_equal(s.shm, 1); /* the last one given */
    setenv("DDSTORE_READ_TIMEOUT_S", "soon", 1);
    CHECK_FAILS(load("DDSTORE_SHM", "0"), DDSTORE_EINVAL,
                "DDSTORE_READ_TIMEOUT_S=soon");
    assert_int_equal(load("DDSTORE_READ_TIMEOUT_S", "8"), 0); /* not looked at */
    setenv("DDSTORE_READ_TIMEOUT_S", "", 1);
    assert_int_equal(load("DDSTORE_SHM", "0"), 0);
    assert_true(s.read_timeout_s == 60); /* empty is unset */
    unsetenv("DDSTORE_READ_TIMEOUT_S");
}

static void given_ones_must_exist(void **state)
{
    (void)state;
    CHECK_FAILS(load("DDSTORE_SPEED", "1"), DDSTORE_EINVAL, "DDSTORE_SPEED");
    CHECK_FAILS(load("", "1"), DDSTORE_EINVAL, "no setting");
    CHECK_FAILS(load(NULL, "1"), DDSTORE_EINVAL, "");
    CHECK_FAILS(load("DDSTORE_SHM", NULL), DDSTORE_EINVAL, "DDSTORE_SHM");
}

static void unknown_names_are_warned_of_once(void **state)
{
    (void)state;
    /* In a process of its own: the warning comes once a process. */
    pid_t pid = fork();
    if (pid == 0) {
        in_member = true;
        setenv("DDSTORE_READ_TIMEOUT", "3", 1);
        setenv("DDSTORE_HANDSHAKEDIR", "/x", 1);
        setenv("DDSTORE_", "", 1);
        char longest[600] = "DDSTORE_";
        memset(longest + 8, 'Q', sizeof(longest) - 9);
        setenv(longest, "1", 1);
        setenv("DDSTOREX", "not ours", 1);
        ddstore_set_logger(note, NULL, DDSTORE_LOG_WARN);
        ddstore__settings_warn_unknown();
        ddstore__settings_warn_unknown();
        CHECK(n_warned == 4);
        bool timeout = false, directory = false;
        for (int i = 0; i < n_warned; i++) {
            timeout |= strstr(warned[i], "DDSTORE_READ_TIMEOUT is ") &&
                       strstr(warned[i], "mean DDSTORE_READ_TIMEOUT_S?");
            directory |= strstr(warned[i], "DDSTORE_HANDSHAKEDIR is ") &&
                         strstr(warned[i], "mean DDSTORE_HANDSHAKE_DIR?");
        }
        CHECK(timeout && directory);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void each_is_described(void **state)
{
    (void)state;
    ddstore_setting_info info;
    size_t n = 0;
    bool shm = false;
    setenv("DDSTORE_SHM", "0", 1);
    setenv("DDSTORE_PROFILE", "often", 1);
    for (; ddstore_setting_describe(n, &info) == 0; n++) {
        assert_true(info.name && info.kind && info.fallback && info.allowed &&
                    info.help);
        if (strcmp(info.name, "DDSTORE_SHM") == 0) {
            shm = true;
            assert_string_equal(info.value, "0");
            assert_string_equal(info.fallback, "1");
            assert_string_equal(info.origin, "environment");
            assert_int_equal(info.bad, 0);
        }
        if (strcmp(info.name, "DDSTORE_PROFILE") == 0)
            assert_int_equal(info.bad, 1);
        if (strcmp(info.name, "DDSTORE_MAX_READ_BYTES") == 0)
            assert_string_equal(info.origin, "default");
    }
    unsetenv("DDSTORE_SHM");
    unsetenv("DDSTORE_PROFILE");
    assert_true(shm && n > 20);
    assert_int_equal(ddstore_setting_describe(SIZE_MAX, &info), DDSTORE_EINDEX);
}

static void launches_are_told_apart(void **state)
{
    (void)state;
    static const char *const names[] = {"SLURM_JOB_ID",   "SLURM_STEP_ID",
                                        "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID",
                                        "PMI_JOBID",      "OMPI_MCA_orte_hnp_uri",
                                        "DDSTORE_RUN_ID"};
    char a[256], b[256];
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++)
        unsetenv(names[i]);
    ddstore__launch_identity(a, sizeof(a));
    assert_string_equal(a, "");
    setenv("SLURM_JOB_ID", "17", 1);
    setenv("SLURM_STEP_ID", "2", 1);
    ddstore__launch_identity(a, sizeof(a));
    setenv("SLURM_RESTART_COUNT", "1", 1);
    ddstore__launch_identity(b, sizeof(b));
    assert_string_not_equal(a, b);
    setenv("DDSTORE_RUN_ID", "mine", 1);
    ddstore__launch_identity(b, sizeof(b));
    assert_non_null(strstr(b, "mine"));
    assert_null(strstr(b, "17"));
    ddstore__launch_identity(b, 5); /* cut, not overrun */
    assert_int_equal(strlen(b), 4);
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++)
        unsetenv(names[i]);
    unsetenv("SLURM_RESTART_COUNT");
}

/* The identity where these variables are set, NAME=value each. */
static const char *identity_of(const char *const *set, size_t n)
{
    static char out[256];
    char name[64];
    for (int on = 1; on >= 0; on--) {
        for (size_t i = 0; i < n && set[i]; i++) {
            size_t length = strcspn(set[i], "=");
            memcpy(name, set[i], length);
            name[length] = '\0';
            if (on)
                setenv(name, set[i] + length + 1, 1);
            else
                unsetenv(name);
        }
        if (on)
            ddstore__launch_identity(out, sizeof(out));
    }
    return out;
}

static void a_step_of_slurm_is_told_by_its_restarts(void **state)
{
    (void)state;
    static const struct {
        const char *set[7], *expect;
    } launches[] = {
        {{"SLURM_JOB_ID=17", "SLURM_STEP_ID=0"}, "slurm:17:0:0"},
        {{"SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=2"},
         "slurm:17:0:2"},
        {{"SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=2",
          "PMI_JOBID=17.0"},
         "slurm:17:0:2"},
        {{"SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=2",
          "PMIX_NAMESPACE=slurm.pmix.17.0"},
         "slurm:17:0:2"},
        /* mpirun: its ranks on the first node are in no step, the others in one. */
        {{"SLURM_JOB_ID=17", "PMIX_NAMESPACE=42", "OMPI_MCA_ess_base_jobid=42"},
         "ompi:42:42"},
        {{"SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "PMIX_NAMESPACE=42",
          "OMPI_MCA_ess_base_jobid=42"},
         "ompi:42:42"},
        {{"TORCHELASTIC_RUN_ID=none", "MASTER_PORT=29500"}, "torchrun:none:0:29500"},
        {{"TORCHELASTIC_RUN_ID=none", "MASTER_PORT=29500", "SLURM_JOB_ID=17",
          "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=2"},
         "torchrun:none:0:29500:slurm:17:0:2"},
        {{"DDSTORE_RUN_ID=mine", "SLURM_JOB_ID=17", "SLURM_STEP_ID=0"}, "run:mine"},
        {{"PMI_JOBID=pals"}, "pmi:pals"},
    };
    for (size_t i = 0; i < DDSTORE__COUNT(launches); i++)
        assert_string_equal(identity_of(launches[i].set, 7), launches[i].expect);
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
        TEST(unknown_names_are_warned_of_once), /* while nobody has warned yet */
        TEST(unset_ones_have_their_defaults),
        TEST(words_are_taken_from_their_list),
        TEST(flags_are_0_or_1),
        TEST(counts_are_whole_numbers),
        TEST(bytes_take_suffixes),
        TEST(seconds_take_fractions),
        TEST(texts_may_be_anything),
        TEST(the_caller_wins_over_the_environment),
        TEST(given_ones_must_exist),
        TEST(each_is_described),
        TEST(launches_are_told_apart),
        TEST(a_step_of_slurm_is_told_by_its_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

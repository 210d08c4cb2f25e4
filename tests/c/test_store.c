/* The store of one member alone: arguments, ranges, names, views, and use after its
 * end. */
#include "support.h"

#define SEED 7

static ddstore *store;
static ddstore_var *var;

static ddstore *open_one(void)
{
    ddstore_comm *comm;
    ddstore *s = NULL;
    ddstore_options options = {.struct_bytes = sizeof(options), .method = 1};
    CHECK(ddstore_comm_open_self(&comm, &fault) == 0);
    CHECK(ddstore_open(comm, &options, &s, &fault) == 0);
    return s;
}

static int add_rows(const char *name, int64_t rows, uint64_t disp, uint32_t itemsize)
{
    uint64_t row_bytes = disp * itemsize;
    uint8_t *data = malloc((uint64_t)rows * row_bytes + 1);
    fill_rows(data, 0, rows, row_bytes, SEED);
    ddstore_shard shard = {rows, disp, itemsize, "<f4", data};
    int rc = ddstore_add(store, name, &shard, &var, &fault);
    free(data);
    return rc;
}

static int begin(void **state)
{
    int rc = setup(state);
    store = open_one();
    return rc;
}

static int end(void **state)
{
    ddstore_close(store);
    store = NULL;
    return teardown(state);
}

static void a_variable_describes_itself(void **state)
{
    (void)state;
    ddstore_var_info info;
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    assert_int_equal(ddstore_info(var, &info), 0);
    assert_string_equal(info.name, "v");
    assert_string_equal(info.dtype, "<f4");
    assert_true(info.total_rows == 10 && info.local_rows == 10 &&
                info.local_start == 0);
    assert_true(info.disp == 3 && info.row_bytes == 12 && info.itemsize == 4);
    assert_ptr_equal(ddstore_find(store, "v"), var);
    assert_null(ddstore_find(store, "w"));
    assert_ptr_equal(ddstore_var_at(store, 0), var);
    assert_null(ddstore_var_at(store, 1));
    assert_null(ddstore_var_at(store, SIZE_MAX));
    assert_int_equal(ddstore_rank(store), 0);
    assert_int_equal(ddstore_size(store), 1);
}

static void every_range_is_checked(void **state)
{
    (void)state;
    static const int64_t bad[][2] = {{-1, 1},
                                     {0, 11},
                                     {10, 1},
                                     {11, 0},
                                     {0, -1},
                                     {INT64_MAX, 1},
                                     {INT64_MAX, INT64_MAX},
                                     {INT64_MIN, 1},
                                     {INT64_MIN, INT64_MIN},
                                     {5, INT64_MAX},
                                     {0, INT64_MIN}};
    uint8_t got[10 * 12];
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++) {
        CHECK_FAILS(ddstore_get(var, bad[i][0], bad[i][1], got, &fault), DDSTORE_EINDEX,
                    "variable v");
        if (bad[i][1] > 0)
            CHECK_FAILS(ddstore_update(var, got, bad[i][1], bad[i][0], &fault),
                        DDSTORE_EINDEX, "variable v");
    }
    for (int64_t start = 0; start <= 10; start++)
        for (int64_t rows = 0; rows <= 10 - start; rows++) {
            assert_int_equal(ddstore_get(var, start, rows, got, &fault), 0);
            assert_true(rows_are(got, start, rows, 12, SEED));
        }
    assert_int_equal(ddstore_get(var, 10, 0, NULL, &fault), 0);
}

static void every_index_is_checked_before_a_byte_is_read(void **state)
{
    (void)state;
    static const int64_t bad[] = {-1, 10, INT64_MAX, INT64_MIN, 1ll << 32};
    uint8_t got[3 * 12];
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++) {
        char index[32];
        int64_t rows[] = {1, 2, bad[i]};
        memset(got, 0xee, sizeof(got));
        snprintf(index, sizeof(index), "index %lld ", (long long)bad[i]);
        CHECK_FAILS(ddstore_get_batch(var, rows, 3, got, &fault), DDSTORE_EINDEX, index,
                    "position 2", "10 rows");
        for (size_t b = 0; b < sizeof(got); b++)
            assert_int_equal(got[b], 0xee);
    }
    assert_int_equal(ddstore_get_batch(var, NULL, 0, NULL, &fault), 0);
    const int64_t all[] = {9, 0, 9};
    assert_int_equal(ddstore_get_batch(var, all, 3, got, &fault), 0);
    assert_true(batch_is(got, all, 3, 12, SEED));
}

static void empty_variables_work(void **state)
{
    (void)state;
    int64_t zero = 0;
    uint8_t got[1] = {7};
    assert_int_equal(add_rows("no rows", 0, 3, 4), 0);
    assert_int_equal(ddstore_get(var, 0, 0, got, &fault), 0);
    CHECK_FAILS(ddstore_get(var, 0, 1, got, &fault), DDSTORE_EINDEX, "no rows");
    CHECK_FAILS(ddstore_get_batch(var, &zero, 1, got, &fault), DDSTORE_EINDEX,
                "0 rows");
    assert_int_equal(ddstore_get_batch(var, &zero, 0, got, &fault), 0);
    assert_int_equal(ddstore_update(var, got, 0, 0, &fault), 0);
    assert_int_equal(add_rows("no bytes", 5, 0, 4), 0);
    assert_int_equal(ddstore_get(var, 0, 5, got, &fault), 0);
    assert_int_equal(ddstore_get_batch(var, &zero, 1, got, &fault), 0);
    assert_int_equal(ddstore_update(var, got, 5, 0, &fault), 0);
    CHECK_FAILS(ddstore_get(var, 0, 6, got, &fault), DDSTORE_EINDEX, "");
    assert_int_equal(got[0], 7);
}

static void wrong_shards_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *name;
        ddstore_shard shard;
        const char *word;
    } bad[] = {
        {"", {1, 1, 1, "", "x"}, "1 to 1,024 bytes"},
        {NULL, {1, 1, 1, "", "x"}, "1 to 1,024 bytes"},
        {"\xff", {1, 1, 1, "", "x"}, "UTF-8"},
        {"a\xc3", {1, 1, 1, "", "x"}, "UTF-8"},
        {"\xc0\x80", {1, 1, 1, "", "x"}, "UTF-8"},
        {"\xed\xa0\x80", {1, 1, 1, "", "x"}, "UTF-8"},
        {"\xf5\x80\x80\x80", {1, 1, 1, "", "x"}, "UTF-8"},
        {"\xe0\x80\x80", {1, 1, 1, "", "x"}, "UTF-8"},
        {"v", {-1, 1, 1, "", "x"}, "-1 rows"},
        {"v", {1, 1, 0, "", "x"}, "itemsize is 0"},
        {"v", {1, UINT64_MAX, 2, "", "x"}, "too large"},
        {"v", {INT64_MAX, 1u << 30, 8, "", "x"}, "too large"},
        {"v", {1ll << 61, 2, 1, "", "x"}, "too large"},
    };
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        CHECK_FAILS(ddstore_add(store, bad[i].name, &bad[i].shard, &var, &fault),
                    DDSTORE_EINVAL, bad[i].word);
    static char name[1100];
    memset(name, 'n', 1025);
    CHECK_FAILS(add_rows(name, 1, 1, 1), DDSTORE_EINVAL, "1025");
    name[1024] = '\0';
    assert_int_equal(add_rows(name, 1, 1, 1), 0); /* and the store is still usable */
    static char dtype[70000];
    memset(dtype, 'd', sizeof(dtype) - 1);
    ddstore_shard shard = {1, 1, 1, dtype, "x"};
    CHECK_FAILS(ddstore_add(store, "w", &shard, &var, &fault), DDSTORE_EINVAL, "dtype");
}

static void names_are_told_apart_as_given(void **state)
{
    (void)state;
    static const char *const names[] = {"a/b",      "a_b",       "a.b",  "a b",
                                        "A",        "a",         "../x", ".",
                                        "\xc3\xa4", "a\xcc\x88", "con",  "%s%n"};
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++)
        assert_int_equal(add_rows(names[i], 1 + (int64_t)i, 1, 1), 0);
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++) {
        ddstore_var_info info;
        assert_int_equal(ddstore_info(ddstore_find(store, names[i]), &info), 0);
        assert_string_equal(info.name, names[i]);
        assert_int_equal(info.total_rows, 1 + (int64_t)i);
    }
    CHECK_FAILS(add_rows("a", 1, 1, 1), DDSTORE_EINVAL, "variable a exists already");
    assert_ptr_equal(ddstore_find(store, "a"),
                     ddstore_var_at(store, 5)); /* the first */
}

static void too_much_memory_is_an_error(void **state)
{
    (void)state;
    ddstore_shard shard = {1000, 1 << 20, 1024, "", NULL}; /* 1000 GiB */
    CHECK_FAILS(ddstore_add(store, "v", &shard, &var, &fault), DDSTORE_ENOMEM, "rank 0",
                "1024000.0 MiB", "free");
    assert_int_equal(add_rows("v", 3, 1, 1), 0);
}

static void updates_are_seen(void **state)
{
    (void)state;
    uint8_t rows[4 * 12], got[10 * 12];
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    fill_rows(rows, 6, 4, 12, SEED + 1);
    assert_int_equal(ddstore_update(var, rows, 4, 6, &fault), 0);
    assert_int_equal(ddstore_get(var, 0, 10, got, &fault), 0);
    assert_true(rows_are(got, 0, 6, 12, SEED));
    assert_true(rows_are(got + 72, 6, 4, 12, SEED + 1));
}

static void untyped_rows_begin_as_zeros(void **state)
{
    (void)state;
    uint8_t got[50];
    memset(got, 1, sizeof(got));
    ddstore_shard shard = {5, 10, 1, NULL, NULL};
    assert_int_equal(ddstore_add(store, "v", &shard, &var, &fault), 0);
    assert_int_equal(ddstore_get(var, 0, 5, got, &fault), 0);
    for (size_t i = 0; i < sizeof(got); i++)
        assert_int_equal(got[i], 0);
    assert_int_equal(ddstore_add(store, "w", &shard, NULL, &fault), 0); /* no handle */
    assert_non_null(ddstore_find(store, "w"));
}

static void a_view_outlives_the_store(void **state)
{
    (void)state;
    void *data;
    uint64_t bytes;
    uint8_t got[120];
    ddstore_view *view, *second;
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    assert_int_equal(ddstore_view_open(var, &data, &bytes, &view, &fault), 0);
    assert_int_equal(bytes, 120);
    assert_true(rows_are(data, 0, 10, 12, SEED));
    fill_rows(data, 0, 10, 12, SEED + 1); /* in place */
    assert_int_equal(ddstore_get(var, 0, 10, got, &fault), 0);
    assert_true(rows_are(got, 0, 10, 12, SEED + 1));
    ddstore_free(store);
    CHECK_FAILS(ddstore_view_open(var, &data, &bytes, &second, &fault), DDSTORE_ECLOSED,
                "");
    ddstore_close(store);
    store = NULL;
    assert_true(rows_are(data, 0, 10, 12, SEED + 1));
    ((uint8_t *)data)[119] = 1;
    ddstore_view_close(view);
    ddstore_view_close(NULL);
}

static void a_freed_store_refuses_everything(void **state)
{
    (void)state;
    uint8_t got[120];
    int64_t row = 0;
    int alive;
    ddstore_shard shard = {1, 1, 1, "", "x"};
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    ddstore_free(store);
    ddstore_free(store); /* twice does nothing */
    CHECK_FAILS(ddstore_get(var, 0, 1, got, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_get(var, 99, 1, got, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_get_batch(var, &row, 1, got, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_update(var, got, 1, 0, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_add(store, "w", &shard, &var, &fault), DDSTORE_ECLOSED,
                "freed");
    CHECK_FAILS(ddstore_join(store, "w", &var, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_register_recv(store, got, 1, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_unregister_recv(store, got, 1, &fault), DDSTORE_ECLOSED,
                "freed");
    CHECK_FAILS(ddstore_core_alive(store, &alive, &fault), DDSTORE_ECLOSED, "freed");
    ddstore_free(NULL);
    ddstore_close(NULL);
}

static void destinations_are_registered_once(void **state)
{
    (void)state;
    static uint8_t buffer[4096];
    assert_int_equal(ddstore_register_recv(store, buffer, 4096, &fault), 0);
    assert_int_equal(ddstore_register_recv(store, buffer, 4096, &fault), 0);
    assert_int_equal(ddstore_unregister_recv(store, buffer, 4096, &fault), 0);
    CHECK_FAILS(ddstore_unregister_recv(store, buffer, 4096, &fault), DDSTORE_EINVAL,
                "not registered");
    assert_int_equal(ddstore_register_recv(store, buffer, 4096, &fault), 0);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    static const ddstore_setting unknown = {"DDSTORE_NO", "1"},
                                 bad = {"DDSTORE_SHM", "7"};
    const ddstore_options good = {.struct_bytes = sizeof(good), .method = 1};
    ddstore_options o[7];
    const char *words[] = {"another version",  "method is 0", "method is 3",
                           "n_core is -1",     "DDSTORE_NO",  "DDSTORE_SHM=7",
                           "needs a directory"};
    for (size_t i = 0; i < 7; i++)
        o[i] = good;
    o[0].struct_bytes--;
    o[1].method = 0;
    o[2].method = 3;
    o[3].n_core = -1;
    o[4].settings = &unknown, o[4].n_settings = 1;
    o[5].settings = &bad, o[5].n_settings = 1;
    o[6].method = 2;
    for (size_t i = 0; i < 7; i++) {
        ddstore_comm *comm;
        ddstore *s = NULL;
        assert_int_equal(ddstore_comm_open_self(&comm, &fault), 0);
        CHECK_FAILS(ddstore_open(comm, &o[i], &s, &fault), DDSTORE_EINVAL, words[i]);
        assert_null(s);
    }
    ddstore *s = NULL;
    CHECK_FAILS(ddstore_open_extra(&good, &s, &fault), DDSTORE_EINVAL, "method 2");
    CHECK_FAILS(ddstore_open_extra(NULL, &s, &fault), DDSTORE_EINVAL, "version");
}

static void the_profile_counts(void **state)
{
    (void)state;
    ddstore_profile p;
    uint8_t got[120];
    const int64_t rows[] = {1, 1, 2};
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    assert_int_equal(ddstore_get(var, 0, 10, got, &fault), 0);
    assert_int_equal(ddstore_get_profile(var, &p), 0);
    assert_int_equal(p.calls, 0); /* nobody asked for it */
    ddstore_close(store);
    setenv("DDSTORE_PROFILE", "1", 1);
    store = open_one();
    unsetenv("DDSTORE_PROFILE");
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    assert_int_equal(ddstore_get(var, 0, 10, got, &fault), 0);
    assert_int_equal(ddstore_get_batch(var, rows, 3, got, &fault), 0);
    CHECK_FAILS(ddstore_get(var, 11, 1, got, &fault), DDSTORE_EINDEX, "");
    assert_int_equal(ddstore_get_profile(var, &p), 0);
    assert_true(p.calls == 2 && p.rows == 13 && p.bytes == 156 && p.rows_local == 13);
    assert_true(p.rows_tcp == 0 && p.rows_rdma == 0 && p.read > 0);
}

static void stores_stand_side_by_side(void **state)
{
    (void)state;
    ddstore *kept = store, *other = open_one();
    uint8_t got[120];
    assert_int_equal(add_rows("v", 10, 3, 4), 0);
    ddstore_var *first = var;
    store = other;
    ddstore_shard shard = {2, 1, 1, "u1", "zz"};
    assert_int_equal(ddstore_add(other, "v", &shard, &var, &fault), 0);
    store = kept;
    assert_int_equal(ddstore_get(var, 0, 2, got, &fault), 0);
    assert_memory_equal(got, "zz", 2);
    ddstore_close(other);
    assert_int_equal(ddstore_get(first, 0, 10, got, &fault), 0);
    assert_true(rows_are(got, 0, 10, 12, SEED));
}

static void peers_are_described(void **state)
{
    (void)state;
    ddstore_peer_info info;
    assert_int_equal(ddstore_peer_at(store, 0, &info), 0);
    assert_int_equal(info.pid, getpid());
    assert_string_equal(info.path, "self");
    assert_string_equal(info.state, "alive");
    assert_int_equal(ddstore_peer_at(store, 1, &info), DDSTORE_EINDEX);
    assert_int_equal(ddstore_peer_at(store, -1, &info), DDSTORE_EINDEX);
}

static void a_store_opens_and_closes_often(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        ddstore_close(store);
        store = open_one();
        assert_int_equal(add_rows("v", 3, 1, 1), 0);
    }
    int fd = dup(0);
    assert_true(fd < 40); /* no descriptor was left behind */
    close(fd);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_variable_describes_itself),
        TEST(every_range_is_checked),
        TEST(every_index_is_checked_before_a_byte_is_read),
        TEST(empty_variables_work),
        TEST(wrong_shards_are_refused),
        TEST(names_are_told_apart_as_given),
        TEST(too_much_memory_is_an_error),
        TEST(updates_are_seen),
        TEST(untyped_rows_begin_as_zeros),
        TEST(a_view_outlives_the_store),
        TEST(a_freed_store_refuses_everything),
        TEST(destinations_are_registered_once),
        TEST(wrong_options_are_refused),
        TEST(the_profile_counts),
        TEST(stores_stand_side_by_side),
        TEST(peers_are_described),
        TEST(a_store_opens_and_closes_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

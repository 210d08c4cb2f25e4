/* Forked children: what they inherit is refused and harms nobody. */
#include "core.h"

static const core_spec two = {
    .size = 2, .rows = {30, 40}, .disp = 100, .itemsize = 1, .seed = SEED};

static void use_all(ddstore *store, ddstore_var *var)
{
    uint8_t got[100];
    int64_t row = 0;
    int alive;
    void *data;
    uint64_t bytes;
    ddstore_view *view;
    ddstore_var *other;
    ddstore_shard shard = {1, 1, 1, "", "x"};
    CHECK_FAILS(ddstore_get(var, 0, 1, got, &fault), DDSTORE_EFORKED, "fork_reader");
    CHECK_FAILS(ddstore_get_batch(var, &row, 1, got, &fault), DDSTORE_EFORKED, "");
    CHECK_FAILS(ddstore_update(var, got, 1, 0, &fault), DDSTORE_EFORKED, "");
    CHECK_FAILS(ddstore_view_open(var, &data, &bytes, &view, &fault), DDSTORE_EFORKED,
                "");
    CHECK_FAILS(ddstore_add(store, "w", &shard, &other, &fault), DDSTORE_EFORKED, "");
    CHECK_FAILS(ddstore_join(store, "w", &other, &fault), DDSTORE_EFORKED, "");
    CHECK_FAILS(ddstore_register_recv(store, got, 1, &fault), DDSTORE_EFORKED, "");
    CHECK_FAILS(ddstore_core_alive(store, &alive, &fault), DDSTORE_EFORKED, "");
    ddstore_free(store);
    ddstore_close(store);
}

static void inherited_stores_are_refused(void **state)
{
    (void)state;
    group g = group_start(&two);
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        assert_true(all_rows_are(var, &two, SEED));
        for (int i = 0; i < 3; i++) {
            in_child(use_all, store, var);
            assert_true(all_rows_are(var, &two, SEED)); /* the parent is unharmed */
        }
        ddstore_close(store);
    }
    group_end(&g);
}

static void use_in_child_of_core(core *c, char what)
{
    (void)what;
    in_child(use_all, c->store, c->var);
    CHECK(all_rows_are(c->var, c->spec, SEED));
}

static void a_cores_children_harm_nobody(void **state)
{
    (void)state;
    core_spec spec = two;
    spec.body = use_in_child_of_core;
    group g = group_start(&spec);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    assert_true(all_rows_are(var, &two, SEED));
    for (int i = 0; i < 3; i++)
        ORDER(g.at[0], 'c');
    assert_true(all_rows_are(var, &two, SEED)); /* over the channels of before */
    ddstore_close(store);
    group_end(&g);
}

/* A child that opens its own store beside the dead one. */
static inline void open_own(ddstore *store, ddstore_var *var)
{
    (void)store, (void)var;
    for (size_t n = 0; n <= 1; n++) {
        ddstore *own = extra_open(by_tcp, n);
        CHECK(all_rows_are(extra_join(own, "v"), &two, SEED));
        ddstore_close(own);
    }
}

static inline void a_child_may_open_its_own(void **state)
{
    (void)state;
    group g = group_start(&two);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    assert_true(all_rows_are(var, &two, SEED));
    for (int i = 0; i < 3; i++)
        in_child(open_own, store, var);
    assert_true(all_rows_are(var, &two, SEED));
    ddstore_close(store);
    group_end(&g);
}

static void nothing_is_inherited(ddstore *store, ddstore_var *var)
{
    (void)store, (void)var;
    check_nothing_is_inherited();
}

static void a_child_holds_none_of_its_descriptors(void **state)
{
    (void)state;
    group g = group_start(&two);
    core_spec other = {.size = 1, .rows = {5}, .disp = 1, .itemsize = 1, .ns = "u"};
    core c = {.spec = &other};
    core_open(&c);
    core_add(&c, "w", SEED);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    assert_true(all_rows_are(var, &two, SEED));
    in_child(nothing_is_inherited, store, var);
    ddstore_close(store);
    ddstore_close(c.store);
    group_end(&g);
}

static atomic_int over;

static void drop_line(void *arg, int level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

static void *log_and_wait(void *arg)
{
    (void)arg;
    ddstore__wait wait = {DDSTORE__FOREVER, NULL};
    while (!atomic_load(&over)) {
        ddstore__log(DDSTORE_LOG_INFO, "line");
        (void)ddstore_log_drain(0);
        (void)ddstore__wait_check(&wait, NULL);
    }
    return NULL;
}

static void log_in_child(ddstore *store, ddstore_var *var)
{
    (void)store, (void)var;
    ddstore__wait wait = {DDSTORE__FOREVER, NULL};
    alarm(20);
    ddstore__log(DDSTORE_LOG_INFO, "line");
    ddstore__log_later(DDSTORE_LOG_INFO, "line");
    CHECK(ddstore_log_drain(0) == 1);
    CHECK(ddstore__wait_check(&wait, NULL) == 0);
}

/* Whatever the other threads of the parent held at that moment. */
static void forked_at_any_moment(void **state)
{
    (void)state;
    pthread_t thread[2];
    group g = group_start(&two);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    ddstore_set_logger(drop_line, NULL, DDSTORE_LOG_DEBUG);
    atomic_store(&over, 0);
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, log_and_wait, NULL);
    for (int i = 0; i < 300; i++)
        in_child(log_in_child, store, var);
    atomic_store(&over, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    ddstore_close(store);
    group_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(inherited_stores_are_refused),
        TEST(a_cores_children_harm_nobody),

#ifndef __SANITIZE_THREAD__ /* it can't follow such a child */
        TEST(a_child_may_open_its_own),
#endif
        TEST(a_child_holds_none_of_its_descriptors),
        TEST(forked_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

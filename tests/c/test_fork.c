/* Forked children: what they inherit is refused and harms nobody. */
#include "core.h"

#include <spawn.h>
#include <sys/syscall.h>

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

/* -- the library's own thread, during a fork -- */

static atomic_int stood, moved; /* forks at which it stood still, or did not */

static bool waits_in_park(const char *task)
{
    char path[300], text[200] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0 || strcmp(text, "ddstore\n") != 0)
        return true; /* not that thread */
    snprintf(path, sizeof(path), "/proc/self/task/%s/syscall", task);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n <= 0 || strtol(text, NULL, 10) == SYS_futex; /* 0: can't be seen here */
}

static bool all_wait(void)
{
    bool all = true;
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));)
        all = all && (*e->d_name == '.' || waits_in_park(e->d_name));
    closedir(d);
    return all;
}

/* Registered before the library's own handlers, so it runs behind them. The thread may
 * be on its way into the wait still. */
static void look_at_thread(void)
{
    int looks = 0;
    for (int i = 0; looks < 5 && i < 200; i++) {
        looks = all_wait() ? looks + 1 : 0;
        if (!looks)
            sleep_ms(1);
    }
    atomic_fetch_add(looks == 5 ? &stood : &moved, 1);
}

static void exit_at_once(ddstore *store, ddstore_var *var)
{
    (void)store, (void)var;
}

static int mapped_segments(void)
{
    char line[500];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, "memfd:ddstore") != NULL;
    fclose(f);
    return n;
}

static void maps_its_own_only(ddstore *store, ddstore_var *var)
{
    (void)store, (void)var;
    CHECK(mapped_segments() == 1); /* the beacon */
}

/* It would keep the memory when its owner has freed it, or ended. */
static void a_child_maps_no_memory_of_others(void **state)
{
    (void)state;
    group g = group_start(&two);
    ddstore *store = extra_open(NULL, 0);
    ddstore_var *var = extra_join(store, "v");
    assert_true(all_rows_are(var, &two, SEED));
    assert_int_equal(mapped_segments(), 3);
    in_child(maps_its_own_only, store, var);
    ddstore_close(store);
    group_end(&g);
}

/* What is not forked but spawned runs none of the library's handlers. */
static void a_program_inherits_none(void **state)
{
    (void)state;
    char text[4096] = "", file[100];
    char *const args[] = {(char *)"ls", (char *)"-l", (char *)"/proc/self/fd", NULL};
    char *const env[] = {(char *)"PATH=/usr/bin:/bin", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;
    group g = group_start(&two);
    ddstore *store = extra_open(by_tcp, 1);
    CHECK(all_rows_are(extra_join(store, "v"), &two, SEED));
    snprintf(file, sizeof(file), "%s/fds", dir);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, file, O_CREAT | O_WRONLY, 0600);
    CHECK(posix_spawnp(&pid, "ls", &actions, NULL, args, env) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    posix_spawn_file_actions_destroy(&actions);
    int fd = open(file, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    CHECK(strstr(text, "/fds") && !strstr(text, "memfd:") &&
          !strstr(text, "anon_inode"));
    ddstore_close(store);
    group_end(&g);
}

static atomic_int over;
static void *read_on(void *arg);

static void the_librarys_thread_stands_still(void **state)
{
    (void)state;
    pthread_t thread;
    core_spec own = {.size = 1, .rows = {70}, .disp = 100, .itemsize = 1, .ns = "u"};
    core c = {.spec = &own};
    core_open(&c);
    core_add(&c, "v", SEED);
    atomic_store(&over, 0);
    pthread_create(&thread, NULL, read_on, c.var); /* of itself, over TCP */
    atomic_store(&stood, 0);
    atomic_store(&moved, 0);
    for (int i = 0; i < 200; i++)
        in_child(exit_at_once, c.store, c.var);
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&stood) == 200 && atomic_load(&moved) == 0);
    CHECK(all_rows_are(c.var, &own, SEED)); /* it goes on */
    ddstore_close(c.store);
}

static void *read_on(void *arg)
{
    while (!atomic_load(&over)) {
        ddstore *store = extra_open(by_tcp, 1);
        (void)extra_join(store, "v");
        CHECK(ddstore_core_alive(store, &(int){0}, &fault) == 0);
        ddstore_close(store);
    }
    (void)arg;
    return NULL;
}

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
        TEST(the_librarys_thread_stands_still),
        TEST(a_program_inherits_none),
        TEST(a_child_maps_no_memory_of_others),
    };
    (void)pthread_atfork(look_at_thread, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

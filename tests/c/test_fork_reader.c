/* Readers: read-only stores of the same variables, in forked children, in children of
 * those, and beside the first store. */
#include "fork_help.h"

static const ddstore_setting impatient[] = {{"DDSTORE_SHM", "0"},
                                            {"DDSTORE_READ_TIMEOUT_S", "5"}};

/* -- beside the first store -- */

static void readers_of_core(core *c, char what)
{
    (void)what;
    readers_of(c->store, c->rank);
    CHECK(all_rows_are(c->var, c->spec, SEED));
}

static void a_reader_beside_its_store(void **state)
{
    (void)state;
    for (int method = 1; method <= 2; method++) {
        core_spec spec = two;
        spec.method = method;
        spec.ns = method == 1 ? "one" : "two";
        spec.body = readers_of_core;
        group g = group_start(&spec);
        for (int r = 0; r < 2; r++)
            ORDER(g.at[r], 'r');
        if (method == 2) {
            ddstore *store = extra_open(by_tcp, 1);
            ddstore_var *var = extra_join(store, "v");
            readers_of(store, -1);
            CHECK(all_rows_are(var, &two, SEED));
            ddstore_close(store);
        }
        group_end(&g);
    }
}

static void it_is_read_only(void **state)
{
    (void)state;
    uint8_t byte = 0;
    void *data;
    uint64_t bytes;
    ddstore_view *view;
    ddstore_var *other;
    ddstore_shard shard = {1, 1, 1, "", "x"};
    group g = group_start(&two);
    ddstore *store = extra_open(NULL, 0);
    (void)extra_join(store, "v");
    ddstore *reader = reader_open(store, NULL, 0);
    ddstore_var *var = var_of(reader, "v");
    CHECK_FAILS(ddstore_add(reader, "w", &shard, &other, &fault), DDSTORE_EINVAL,
                "reader");
    CHECK_FAILS(ddstore_update(var, &byte, 1, 0, &fault), DDSTORE_EINVAL, "reader",
                "read-only");
    CHECK_FAILS(ddstore_view_open(var, &data, &bytes, &view, &fault), DDSTORE_EINVAL,
                "reader");
    CHECK_FAILS(ddstore_join(reader, "v", &other, &fault), DDSTORE_EINVAL,
                "fork_reader()");
    uint8_t *rows = malloc(100);
    CHECK(ddstore_register_recv(reader, rows, 100, &fault) == 0);
    CHECK(ddstore_get(var, 69, 1, rows, &fault) == 0);
    CHECK(rows_are(rows, 69, 1, 100, SEED));
    ddstore_free(reader); /* with a destination that is still registered */
    CHECK_FAILS(ddstore_get(var, 69, 1, rows, &fault), DDSTORE_ECLOSED, "freed");
    CHECK_FAILS(ddstore_describe(reader, &data, &(size_t){0}, &fault), DDSTORE_ECLOSED,
                "freed");
    free(rows);
    ddstore_close(reader);
    ddstore_close(store);
    group_end(&g);
}

static void later_variables_are_in_later_readers(void **state)
{
    (void)state;
    core_spec one = {.size = 1, .rows = {5}, .disp = 3, .itemsize = 2};
    core c = {.spec = &one};
    int alive;
    core_open(&c);
    ddstore *none = reader_open(c.store, NULL, 0);
    CHECK(!ddstore_var_at(none, 0) && ddstore_size(none) == 1);
    CHECK(ddstore_core_alive(none, &alive, &fault) == 0 && alive);
    core_add(&c, "a", SEED);
    ddstore *a = reader_open(c.store, NULL, 0);
    core_add(&c, "b", SEED + 1);
    ddstore *b = reader_open(c.store, NULL, 0);
    CHECK(!ddstore_find(none, "a") && !ddstore_find(a, "b"));
    CHECK(all_rows_are(var_of(a, "a"), &one, SEED));
    CHECK(all_rows_are(var_of(b, "a"), &one, SEED));
    CHECK(all_rows_are(var_of(b, "b"), &one, SEED + 1));
    ddstore_close(c.store); /* readers of this process outlive it */
    uint8_t got[6];
    CHECK_FAILS(ddstore_get(var_of(b, "b"), 0, 1, got, &fault), DDSTORE_ECLOSED,
                "rank 0", "freed");
    CHECK(ddstore_core_alive(a, &alive, &fault) == 0 && !alive);
    ddstore_close(none);
    ddstore_close(a);
    ddstore_close(b);
}

/* An extra member that reads two groups, and one of them anew. */
static void an_extra_of_two_groups(void **state)
{
    (void)state;
    core_spec other = two;
    other.ns = "u";
    other.name = "w";
    other.seed = SEED + 2;
    group g = group_fork(&two), again = group_fork(&two), h = group_fork(&other);
    group_go(&g);
    group_go(&h);
    ddstore *store = extra_open(NULL, 0);
    ddstore *none = reader_open(store, NULL, 0);
    CHECK(!ddstore_var_at(none, 0) && ddstore_size(none) == 0);
    CHECK_FAILS(ddstore_core_alive(none, &(int){0}, &fault), DDSTORE_EINVAL, "joined");
    ddstore_close(none);
    (void)extra_join(store, "v");
    (void)extra_join(store, "w");
    group_end(&g);
    group_go(&again); /* another run */
    (void)extra_join(store, "v");
    ddstore *reader = reader_open(store, NULL, 0);
    CHECK(all_rows_are(var_of(reader, "v"), &two, SEED));
    CHECK(all_rows_are(var_of(reader, "w"), &other, SEED + 2));
    CHECK(ddstore_var_at(reader, 1) && !ddstore_var_at(reader, 2));
    ddstore_close(store);
    CHECK(all_rows_are(var_of(reader, "v"), &two, SEED));
    ddstore_close(reader);
    group_end(&again);
    group_end(&h);
}

static void damaged_bytes_are_refused(void **state)
{
    (void)state;
    void *data;
    size_t bytes;
    ddstore *reader = NULL;
    core_spec one = {.size = 1, .rows = {5}, .disp = 3, .itemsize = 2};
    core c = {.spec = &one};
    core_open(&c);
    core_add(&c, "a", SEED);
    CHECK(ddstore_describe(c.store, &data, &bytes, &fault) == 0);
    uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) {
        p[i] ^= 1;
        CHECK_FAILS(ddstore_open_reader(p, bytes, NULL, 0, &reader, &fault),
                    DDSTORE_EINVAL, "damaged");
        p[i] ^= 1;
        CHECK_FAILS(ddstore_open_reader(p, i, NULL, 0, &reader, &fault), DDSTORE_EINVAL,
                    "damaged");
    }
    const ddstore_setting bad = {"DDSTORE_SHM", "maybe"};
    CHECK_FAILS(ddstore_open_reader(p, bytes, &bad, 1, &reader, &fault), DDSTORE_EINVAL,
                "DDSTORE_SHM");
    CHECK(!reader);
    ddstore_release(data);
    ddstore_close(c.store);
}

static long resident_kb(void)
{
    char line[200];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    CHECK(f);
    while (fgets(line, sizeof(line), f))
        (void)sscanf(line, "VmRSS: %ld", &kb);
    fclose(f);
    return kb;
}

static void rounds_leave_nothing(ddstore *store)
{
    int fds = 0;
    long kb = 0;
    for (int i = 0; i < 220; i++) {
        if (i == 20) {
            fds = count_fds(getpid());
            kb = resident_kb();
        }
        ddstore *reader = reader_open(store, by_tcp, (size_t)i % 2);
        CHECK(all_rows_are(var_of(reader, "v"), &two, SEED));
        ddstore_close(reader);
    }
    CHECK(count_fds(getpid()) == fds);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    kb = resident_kb(); /* they keep what is freed */
#endif
    CHECK(resident_kb() - kb < 1024);
}

static void rounds_in_child(ddstore *store, ddstore_var *var)
{
    (void)var;
    rounds_leave_nothing(store);
}

static void many_readers_leave_nothing(void **state)
{
    (void)state;
    group g = group_start(&two);
    ddstore *store = extra_open(NULL, 0);
    ddstore_var *var = extra_join(store, "v");
    rounds_leave_nothing(store);
    if (FOLLOWED)
        in_child(rounds_in_child, store, var);
    ddstore_close(store);
    group_end(&g);
}

/* -- a reader a thread -- */

static atomic_int failures;
static ddstore *shared;

static void *read_own(void *arg)
{
    size_t n = *(const size_t *)arg;
    ddstore *reader = reader_open(shared, by_tcp, n);
    for (int i = 0; i < 50; i++)
        if (!all_rows_are(var_of(reader, "v"), &two, SEED))
            atomic_fetch_add(&failures, 1);
    ddstore_close(reader);
    return NULL;
}

static void one_a_thread(void **state)
{
    (void)state;
    pthread_t thread[4];
    size_t n[4] = {0, 1, 0, 1};
    group g = group_start(&two);
    shared = extra_open(NULL, 0);
    (void)extra_join(shared, "v");
    atomic_store(&failures, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, read_own, &n[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(atomic_load(&failures) == 0);
    ddstore_close(shared);
    group_end(&g);
}

/* -- in forked children -- */

/* A child whose reader is inherited by a child of its own. */
static void read_in_grandchild(ddstore *store, ddstore_var *var)
{
    ddstore *reader = reader_open(store, by_tcp, 1);
    (void)var;
    CHECK(all_rows_are(var_of(reader, "v"), &two, SEED));
    in_child(read_in_child, reader, var_of(reader, "v"));
    in_child(read_in_child, store, var); /* of the grandparent's */
    CHECK(all_rows_are(var_of(reader, "v"), &two, SEED));
    ddstore_close(reader);
}

static void children_of_core(core *c, char what)
{
    in_child(what == 'c' ? read_in_child : read_in_grandchild, c->store, c->var);
    CHECK(all_rows_are(c->var, c->spec, SEED));
}

static inline void readers_in_children(void **state)
{
    (void)state;
    for (int method = 1; method <= 2; method++) {
        core_spec spec = two;
        spec.method = method;
        spec.ns = method == 1 ? "one" : "two";
        spec.body = children_of_core;
        group g = group_start(&spec);
        for (int r = 0; r < 2; r++) {
            ORDER(g.at[r], 'c');
            ORDER(g.at[r], 'g');
        }
        for (size_t n = 0; method == 2 && n <= 1; n++) {
            ddstore *store = extra_open(by_tcp, n);
            ddstore_var *var = extra_join(store, "v");
            CHECK(all_rows_are(var, &two, SEED));
            in_child(read_in_child, store, var);
            in_child(read_in_grandchild, store, var);
            CHECK(all_rows_are(var, &two, SEED));
            ddstore_close(store);
        }
        group_end(&g);
    }
}

static void *fork_from_thread(void *arg)
{
    ddstore *store = arg;
    in_child(read_in_child, store, var_of(store, "v"));
    return NULL;
}

static inline void forked_by_a_thread(void **state)
{
    (void)state;
    pthread_t thread;
    group g = group_start(&two);
    ddstore *store = extra_open(by_tcp, 1);
    (void)extra_join(store, "v");
    pthread_create(&thread, NULL, fork_from_thread, store);
    pthread_join(thread, NULL);
    CHECK(all_rows_are(var_of(store, "v"), &two, SEED));
    ddstore_close(store);
    group_end(&g);
}

/* Reads until the core is gone, in time; the exit status is how it ended. */
static void read_to_the_end(ddstore *store, ddstore_var *var, int fd, size_t n)
{
    uint8_t got[100];
    int rc = 0;
    ddstore *reader = reader_open(store, impatient, n);
    (void)var;
    say(fd, 'r');
    int64_t begin = ddstore__now_ns();
    for (int64_t i = 0; !rc && seconds_since(begin) < 30; i++)
        rc = ddstore_get(var_of(reader, "v"), 30 + i % 40, 1, got, &fault);
    CHECK(rc && strstr(fault.message, "rank 1"));
    CHECK(ddstore_get(var_of(reader, "v"), 3, 1, got, &fault) == 0); /* of rank 0 */
    ddstore_close(reader);
    _exit(rc == DDSTORE_ECLOSED ? 1 : rc == DDSTORE_EPEER ? 2 : 3);
}

static inline void the_core_ends_meanwhile(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        bool killed = round & 1;
        size_t n = round & 2 ? 2 : 0;
        int pair[2], status;
        group g = group_start(&two);
        ddstore *store = extra_open(impatient, n);
        ddstore_var *var = extra_join(store, "v");
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        pid_t pid = fork();
        if (pid == 0) {
            in_member = true;
            alarm(60);
            read_to_the_end(store, var, pair[1], n);
        }
        EXPECT(pair[0], 'r');
        sleep_ms(100);
        int64_t begin = ddstore__now_ns();
        if (killed)
            member_kill(g.at[1]);
        else
            ORDER(g.at[1], 'f');
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (killed ? 2 : 1));
        CHECK(seconds_since(begin) < 6);
        close(pair[0]);
        close(pair[1]);
        ddstore_close(store);
        group_end(&g);
    }
}

/* -- a child that lives longer than its parent -- */

static int lasting[2]; /* ends the child */

static void leave_child_behind(core *c, char what)
{
    (void)what;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char byte;
        in_member = true;
        alarm(60);
        prctl(PR_SET_PDEATHSIG, 0);
        close(lasting[1]);
        ddstore *reader = FOLLOWED ? reader_open(c->store, by_tcp, 1) : NULL;
        say(lasting[0], 'r');
        (void)!read(lasting[0], &byte, 1);
        ddstore_close(reader);
        _exit(0);
    }
}

static void a_child_outlives_its_parent(void **state)
{
    (void)state;
    core_spec spec = two;
    uint8_t got[100];
    spec.body = leave_child_behind;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, lasting) == 0);
    group g = group_start(&spec);
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(impatient, n ? 2 : 0);
        ddstore_var *var = extra_join(store, "v");
        CHECK(all_rows_are(var, &two, SEED));
        if (n == 0)
            ddstore_close(store);
        else {
            ORDER(g.at[1], 'c');
            EXPECT(lasting[1], 'r');
            CHECK(all_rows_are(var, &two, SEED));
            member_kill(g.at[1]);
            int64_t begin = ddstore__now_ns();
            CHECK_FAILS(ddstore_get(var, 35, 1, got, &fault), DDSTORE_EPEER, "rank 1");
            CHECK(seconds_since(begin) < 2);
            CHECK(ddstore_get(var, 5, 1, got, &fault) == 0);
            ddstore_close(store);
        }
    }
    close(lasting[0]);
    close(lasting[1]);
    group_end(&g);
}

/* -- networks that bear no forks -- */

static void refused_in_child(ddstore *store, ddstore_var *var)
{
    void *data;
    size_t bytes;
    ddstore *reader = NULL;
    (void)var;
    CHECK(ddstore_describe(store, &data, &bytes, &fault) == 0);
    CHECK_FAILS(ddstore_open_reader(data, bytes, NULL, 0, &reader, &fault),
                DDSTORE_EFABRIC, "cxi", "DDSTORE_FORK_WORKERS=1");
}

static void read_other(ddstore *store, ddstore_var *var)
{
    ddstore *reader = reader_open(store, NULL, 0);
    (void)var;
    CHECK(ddstore_get(var_of(reader, "v"), 0, 5, (uint8_t[30]){0}, &fault) == 0);
    ddstore_close(reader);
}

static void cxi_needs_preparation(void **state)
{
    (void)state;
    core_spec one = {.size = 1, .rows = {5}, .disp = 3, .itemsize = 2};
    core c = {.spec = &one};
    core_open(&c);
    core_add(&c, "v", SEED);
    ddstore__engine *e = c.store->engine;
    strcpy(e->self.provider, "cxi");
    in_child(refused_in_child, c.store, c.var);
    e->fork_ready = true;
    in_child(FOLLOWED ? read_other : look_in_child, c.store, c.var);
    e->self.provider[0] = '\0';
    ddstore_close(c.store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_reader_beside_its_store),
        TEST(it_is_read_only),
        TEST(later_variables_are_in_later_readers),
        TEST(an_extra_of_two_groups),
        TEST(damaged_bytes_are_refused),
        TEST(many_readers_leave_nothing),
        TEST(one_a_thread),
        TEST(a_child_outlives_its_parent),
        TEST(cxi_needs_preparation),
#ifndef __SANITIZE_THREAD__
        TEST(readers_in_children),
        TEST(forked_by_a_thread),
        TEST(the_core_ends_meanwhile),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

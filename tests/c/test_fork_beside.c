/* Forks beside running threads: whatever these do at that moment, the child holds
 * nothing, and the parent and its rows are as before. */
#include "fork_help.h"

static atomic_int over, failures;

static void *read_on(void *arg)
{
    ddstore_var *var = arg;
    while (!atomic_load(&over))
        if (!all_rows_are(var, &two, SEED))
            atomic_fetch_add(&failures, 1);
    return NULL;
}

/* Opens, reads and closes: descriptors come and go. */
static void *come_and_go(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        ddstore *store = extra_open(by_tcp, 1);
        ddstore_var *var = extra_join(store, "v");
        if (!all_rows_are(var, &two, SEED))
            atomic_fetch_add(&failures, 1);
        ddstore *reader = reader_open(store, NULL, 0);
        if (!all_rows_are(var_of(reader, "v"), &two, SEED))
            atomic_fetch_add(&failures, 1);
        ddstore_close(reader);
        ddstore_close(store);
    }
    return NULL;
}

static void look_and_read_in_child(ddstore *store, ddstore_var *var)
{
    look_in_child(store, var);
    ddstore *reader = reader_open(store, by_tcp, (size_t)getpid() % 2);
    CHECK(ddstore_get(var_of(reader, "v"), 69, 1, (uint8_t[100]){0}, &fault) == 0);
    ddstore_close(reader);
}

static void forked_beside(void *(*fn)(void *), int threads, int forks)
{
    pthread_t thread[4];
    group g = group_start(&two);
    for (size_t n = 0; n <= 1; n++) {
        ddstore *store = extra_open(by_tcp, n);
        ddstore_var *var = extra_join(store, "v");
        atomic_store(&over, 0);
        atomic_store(&failures, 0);
        for (int i = 0; i < threads; i++)
            pthread_create(&thread[i], NULL, fn, var);
        for (int i = 0; i < forks / 2; i++)
            in_child(ALLOCATES && i % 4 == 0 ? look_and_read_in_child : look_in_child,
                     store, var);
        atomic_store(&over, 1);
        for (int i = 0; i < threads; i++)
            pthread_join(thread[i], NULL);
        CHECK(atomic_load(&failures) == 0);
        CHECK(all_rows_are(var, &two, SEED));
        ddstore_close(store);
    }
    group_end(&g);
}

static void forks_beside_reads(void **state)
{
    (void)state;
    forked_beside(read_on, 4, FORKS(500));
}

static void forks_beside_openings(void **state)
{
    (void)state;
    forked_beside(come_and_go, 2, FORKS(300));
}

/* The library's thread starts and ends meanwhile, with the only store. */
static void *start_and_stop(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        ddstore *store = extra_open(NULL, 0);
        sleep_ms(1);
        ddstore_close(store);
    }
    return NULL;
}

static void hold_nothing(ddstore *store, ddstore_var *var)
{
    (void)store, (void)var;
    check_nothing_is_inherited();
}

static void forks_beside_engines(void **state)
{
    (void)state;
    pthread_t thread;
    int waited = 0;
    atomic_store(&over, 0);
    pthread_create(&thread, NULL, start_and_stop, NULL);
    for (int i = 0; i < FORKS(300); i++) {
        int64_t begin = ddstore__now_ns();
        in_child(hold_nothing, NULL, NULL);
        waited += seconds_since(begin) > 0.9; /* for a thread that had ended */
    }
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
    CHECK(waited < 5); /* the machine may be loaded */
}

/* The host's interrupt check forks, as a handler of signals may. */
static pid_t forked;
static int calls;

static int fork_once(void *arg)
{
    (void)arg;
    if (++calls == 3)
        forked = fork();
    return 0;
}

static void forked_in_a_wait(void **state)
{
    (void)state;
    pid_t me = getpid();
    int status;
    const ddstore_setting soon = {"DDSTORE_HANDSHAKE_TIMEOUT_S", "1"};
    ddstore *store = extra_open(&soon, 1);
    ddstore_var *var;
    calls = 0;
    ddstore_set_interrupt(fork_once, NULL);
    fault = (ddstore_error){0};
    int rc = ddstore_join(store, "v", &var, &fault);
    if (getpid() != me) {
        in_member = true;
        alarm(20);
        CHECK(rc == DDSTORE_EFORKED && fault.code == rc);
        check_nothing_is_inherited();
        _exit(0);
    }
    CHECK(rc == DDSTORE_ETIMEDOUT);
    CHECK(waitpid(forked, &status, 0) == forked && status == 0);
    ddstore_set_interrupt(NULL, NULL);
    ddstore_close(store);
}

/* Two threads fork at once, while rows are served. */
static void *fork_on(void *arg)
{
    ddstore *store = arg;
    for (int i = 0; i < 60; i++)
        in_child(look_in_child, store, var_of(store, "v"));
    return NULL;
}

static void fork_in_core(core *c, char what)
{
    pthread_t thread[2];
    (void)what;
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, fork_on, c->store);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

static void two_threads_fork_and_rows_are_served(void **state)
{
    (void)state;
    core_spec spec = two;
    pthread_t thread[2];
    spec.body = fork_in_core;
    group g = group_start(&spec);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    atomic_store(&over, 0);
    atomic_store(&failures, 0);
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, i ? come_and_go : read_on, var);
    for (int r = 0; r < 2; r++)
        say(g.at[r]->fd, 'x');
    for (int r = 0; r < 2; r++)
        EXPECT(g.at[r]->fd, 'k');
    atomic_store(&over, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK(atomic_load(&failures) == 0);
    ddstore_close(store);
    group_end(&g);
}

/* A thread is inside of add(), and waits for the other rank, while the process is
 * forked. */
static void *add_one(void *arg)
{
    core *c = arg;
    core_add(c, "w", SEED + 1);
    return NULL;
}

static void fork_beside_add(core *c, char what)
{
    pthread_t thread;
    ddstore_var *first = c->var;
    if (what == 'b') { /* the other rank comes late */
        (void)add_one(c);
    } else {
        pthread_create(&thread, NULL, add_one, c);
        sleep_ms(50);
        for (int i = 0; i < 10; i++)
            in_child(ALLOCATES ? read_in_child : look_in_child, c->store, first);
        say(c->fd, 'w');
        pthread_join(thread, NULL);
    }
    ddstore *reader = reader_open(c->store, NULL, 0);
    CHECK(all_rows_are(var_of(reader, "v"), &two, SEED));
    CHECK(all_rows_are(var_of(reader, "w"), &two, SEED + 1));
    ddstore_close(reader);
}

static void forks_beside_add(void **state)
{
    (void)state;
    core_spec spec = two;
    spec.body = fork_beside_add;
    group g = group_start(&spec);
    say(g.at[0]->fd, 'a');
    EXPECT(g.at[0]->fd, 'w');
    say(g.at[1]->fd, 'b');
    for (int r = 0; r < 2; r++)
        EXPECT(g.at[r]->fd, 'k');
    group_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(forks_beside_reads),
        TEST(forks_beside_openings),
        TEST(forks_beside_engines),
        TEST(forked_in_a_wait),
        TEST(two_threads_fork_and_rows_are_served),
        TEST(forks_beside_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

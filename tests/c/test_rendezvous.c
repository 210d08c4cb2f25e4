/* One conformance suite over the back ends that need no launcher: self, file, callback.
 */
#include "rendezvous_help.h"

#include "rendezvous/exchange_dir.h"

#define ROUNDS 50 /* of barriers */

/* -- the back ends -- */

/* A host program's allgather, for members that are threads of one process. */
struct host {
    pthread_barrier_t barrier;
    uint8_t *all;
    size_t room;
    int closed;
    int fail_after; /* calls; -1: never */
};

struct host_member {
    struct host *host;
    int rank, size, calls;
};

static int host_allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    struct host_member *m = arg;
    struct host *h = m->host;
    if (h->fail_after >= 0 && m->calls++ >= h->fail_after)
        return 77;
    pthread_barrier_wait(&h->barrier);
    if (m->rank == 0 && bytes * (size_t)m->size > h->room) {
        h->room = bytes * (size_t)m->size;
        h->all = realloc(h->all, h->room);
    }
    pthread_barrier_wait(&h->barrier);
    memcpy(h->all + bytes * (size_t)m->rank, mine, bytes);
    pthread_barrier_wait(&h->barrier);
    memcpy(all, h->all, bytes * (size_t)m->size);
    return 0;
}

static void host_close(void *arg)
{
    struct host_member *m = arg;
    __atomic_fetch_add(&m->host->closed, 1, __ATOMIC_SEQ_CST);
    free(m);
}

/* The same, started and then asked for: a round's bytes are kept until the round after
 * the next one, which none begins before all have ended it. */
struct started {
    struct host_member m;
    int round;
    size_t bytes;
    void *all;
};

static struct {
    pthread_mutex_t lock;
    int arrived[2];
    uint8_t *all[2];
} rounds = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int start_allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    struct started *s = arg;
    int slot = s->round % 2;
    pthread_mutex_lock(&rounds.lock);
    if (rounds.arrived[slot] == s->m.size || !rounds.all[slot]) { /* of a past round */
        rounds.all[slot] = realloc(rounds.all[slot], bytes * (size_t)s->m.size + 1);
        rounds.arrived[slot] = 0;
    }
    memcpy(rounds.all[slot] + bytes * (size_t)s->m.rank, mine, bytes);
    rounds.arrived[slot]++;
    pthread_mutex_unlock(&rounds.lock);
    s->bytes = bytes;
    s->all = all;
    return s->m.host->fail_after == 0 ? 78 : 0;
}

static int test_allgather(void *arg)
{
    struct started *s = arg;
    int slot = s->round % 2;
    pthread_mutex_lock(&rounds.lock);
    bool done = rounds.arrived[slot] == s->m.size;
    if (done)
        memcpy(s->all, rounds.all[slot], s->bytes * (size_t)s->m.size);
    pthread_mutex_unlock(&rounds.lock);
    s->round += done;
    return done;
}

static void why_allgather(void *arg, char *text, size_t bytes)
{
    (void)arg;
    snprintf(text, bytes, "the cat sat on it");
}

enum backend { SELF, FILES, CALLBACK, STARTED };

struct suite {
    enum backend backend;
    struct host host;
    atomic_int round[ROUNDS];
};

static ddstore_comm *open_comm(struct suite *s, int rank, int size)
{
    ddstore_comm *comm = NULL;
    ddstore_error err = {0};
    int rc = 0;
    if (s->backend == SELF)
        rc = ddstore_comm_open_self(&comm, &err);
    else if (s->backend == FILES)
        return open_or_die(rank, size, 30);
    else if (s->backend == STARTED) {
        struct started *m = calloc(1, sizeof(*m));
        m->m = (struct host_member){&s->host, rank, size, 0};
        ddstore_comm_callbacks how = {.rank = rank,
                                      .size = size,
                                      .timeout_s = 30,
                                      .allgather = start_allgather,
                                      .test = test_allgather,
                                      .why = why_allgather,
                                      .close = host_close,
                                      .arg = m};
        rc = ddstore_comm_open_callbacks(&how, &comm, &err);
    } else {
        struct host_member *m = calloc(1, sizeof(*m));
        *m = (struct host_member){&s->host, rank, size, 0};
        ddstore_comm_callbacks how = {.rank = rank,
                                      .size = size,
                                      .allgather = host_allgather,
                                      .close = host_close,
                                      .arg = m};
        rc = ddstore_comm_open_callbacks(&how, &comm, &err);
    }
    if (rc) {
        fprintf(stderr, "open: %s\n", err.message);
        abort();
    }
    return comm;
}

static atomic_int *counters(void *arg)
{
    return ((struct suite *)arg)->round;
}

#include "rendezvous_cases.h"

static void with_suite(enum backend backend, int size, void (*fn)(int, int, void *))
{
    struct suite s = {.backend = backend, .host = {.fail_after = -1}};
    pthread_barrier_init(&s.host.barrier, NULL, (unsigned)size);
    run_threads(size, fn, &s);
    if (backend == CALLBACK || backend == STARTED)
        assert_int_equal(s.host.closed, size);
    pthread_barrier_destroy(&s.host.barrier);
    free(s.host.all);
    for (int i = 0; i < 2; i++) {
        free(rounds.all[i]);
        rounds.all[i] = NULL;
    }
}

#define CASES(name, backend, size)                                                     \
    static void name##_gathers(void **state)                                           \
    {                                                                                  \
        (void)state;                                                                   \
        with_suite(backend, size, case_gather);                                        \
    }                                                                                  \
    static void name##_takes_all_sizes(void **state)                                   \
    {                                                                                  \
        (void)state;                                                                   \
        with_suite(backend, size, case_sizes);                                         \
    }                                                                                  \
    static void name##_holds_barriers(void **state)                                    \
    {                                                                                  \
        (void)state;                                                                   \
        with_suite(backend, size, case_barrier);                                       \
    }                                                                                  \
    static void name##_checks_arguments(void **state)                                  \
    {                                                                                  \
        (void)state;                                                                   \
        with_suite(backend, size, case_arguments);                                     \
    }
CASES(self, SELF, 1)
CASES(file_one, FILES, 1)
CASES(file_two, FILES, 2)
CASES(file_five, FILES, 5)
CASES(callback_one, CALLBACK, 1)
CASES(callback_four, CALLBACK, 4)
CASES(started_one, STARTED, 1)
CASES(started_four, STARTED, 4)

/* -- beside the suite -- */

static int use_inherited(int rank, int size, void *arg)
{
    (void)rank, (void)size;
    ddstore_error err;
    int rc = ddstore_comm_barrier(arg, &err);
    ddstore_comm_close(arg);
    return rc == DDSTORE_EFORKED && strstr(err.message, "fork") ? 0 : 1;
}

static void forked_children_are_refused(void **state)
{
    (void)state;
    ddstore_comm *comm;
    ddstore_error err;
    for (int i = 0; i < 2; i++) {
        if (i)
            comm = open_or_die(0, 1, 5);
        else
            assert_int_equal(ddstore_comm_open_self(&comm, NULL), 0);
        pid_t pid = start(use_inherited, 0, 1, comm);
        assert_int_equal(finish(pid), 0);
        assert_int_equal(count_files(shared, ".claim"), i); /* the parent's own */
        assert_int_equal(ddstore_comm_barrier(comm, &err), 0);
        ddstore_comm_close(comm);
    }
    assert_int_equal(count_files(shared, NULL), 0);
}

static void bad_descriptions_are_refused(void **state)
{
    (void)state;
    ddstore_comm *comm = (ddstore_comm *)&comm;
    ddstore_error err;
    char longest[102];
    memset(longest, 'n', 101), longest[101] = '\0';
    const ddstore_comm_file bad[] = {
        {shared, "", 0, 1, 1},    {shared, NULL, 0, 1, 1}, {shared, "a.b", 0, 1, 1},
        {shared, "a/b", 0, 1, 1}, {shared, "s", -1, 1, 1}, {shared, "s", 1, 1, 1},
        {shared, "s", 0, 0, 1},   {shared, "s", 0, 1, -1}, {shared, longest, 0, 1, 1},
        {NULL, "s", 0, 1, 1},     {"", "s", 0, 1, 1},
    };
    unsetenv("DDSTORE_HANDSHAKE_DIR");
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++) {
        assert_int_equal(ddstore_comm_open_file(&bad[i], &comm, &err), DDSTORE_EINVAL);
        assert_null(comm);
        assert_true(strlen(err.message) > 10);
    }
    assert_int_equal(ddstore_comm_open_file(NULL, &comm, &err), DDSTORE_EINVAL);
    assert_int_equal(ddstore_comm_open_file(&bad[0], NULL, &err), DDSTORE_EINVAL);
    assert_int_equal(ddstore_comm_open_callbacks(NULL, &comm, &err), DDSTORE_EINVAL);
    ddstore_comm_callbacks cb = {.rank = 2, .size = 2, .allgather = host_allgather};
    assert_int_equal(ddstore_comm_open_callbacks(&cb, &comm, &err), DDSTORE_EINVAL);
    cb = (ddstore_comm_callbacks){
        .size = 2, .allgather = host_allgather, .timeout_s = -1};
    assert_int_equal(ddstore_comm_open_callbacks(&cb, &comm, &err), DDSTORE_EINVAL);
    assert_int_equal(ddstore_comm_open_self(NULL, &err), DDSTORE_EINVAL);
    ddstore_comm_close(NULL);
    ddstore_comm_wake(NULL);
}

static void a_failed_callback_breaks_the_group(void **state)
{
    (void)state;
    struct suite s = {.backend = CALLBACK, .host = {.fail_after = 0}};
    ddstore_error err;
    ddstore_comm *comm = open_comm(&s, 0, 1);
    assert_int_equal(ddstore_comm_barrier(comm, &err), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "77"));
    s.host.fail_after = -1;
    assert_int_equal(ddstore_comm_barrier(comm, &err), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "earlier"));
    ddstore_comm_close(comm);
}

/* -- a collective that the library waits for -- */

static int test_never(void *arg)
{
    (void)arg;
    return 0;
}

static int look_once(void *arg, int64_t begun_ns, ddstore_error *err)
{
    assert_true(begun_ns <= ddstore__now_ns());
    return ++*(int *)arg < 100
               ? DDSTORE_OK
               : ddstore__fail(err, DDSTORE_EPEER, "rank 1 of the test is gone");
}

static void names_missing(void *arg, char *text, size_t bytes)
{
    (void)arg;
    snprintf(text, bytes, "rank 1 (host there)");
}

/* A group of two whose other member never comes. */
static ddstore_comm *lonely(double timeout_s, struct suite *s)
{
    ddstore_comm *comm = NULL;
    struct started *m = calloc(1, sizeof(*m));
    m->m = (struct host_member){&s->host, 0, 2, 0};
    ddstore_comm_callbacks how = {.rank = 0,
                                  .size = 2,
                                  .timeout_s = timeout_s,
                                  .allgather = start_allgather,
                                  .test = test_never,
                                  .close = host_close,
                                  .arg = m};
    assert_int_equal(ddstore_comm_open_callbacks(&how, &comm, NULL), 0);
    return comm;
}

static void an_absent_member_is_named(void **state)
{
    (void)state;
    struct suite s = {.backend = STARTED, .host = {.fail_after = -1}};
    ddstore_error err;
    ddstore__watch watch = {.look = look_once, .missing = names_missing};
    ddstore_comm *comm = lonely(0.05, &s);
    int looks = -1000000000;
    watch.arg = &looks;
    comm->watch = &watch;
    assert_int_equal(ddstore_comm_barrier(comm, &err), DDSTORE_ETIMEDOUT);
    assert_non_null(strstr(err.message, "missing rank 1 (host there)"));
    assert_non_null(strstr(err.message, "0.05 s"));
    assert_int_equal(ddstore_comm_barrier(comm, &err), DDSTORE_ETIMEDOUT);
    ddstore_comm_close(comm);
    comm = lonely(30, &s); /* whoever watches ends the wait */
    looks = 0;
    comm->watch = &watch;
    assert_int_equal(ddstore_comm_barrier(comm, &err), DDSTORE_EPEER);
    assert_non_null(strstr(err.message, "rank 1 of the test is gone"));
    ddstore_comm_close(comm);
    rounds.arrived[0] = 0;
    free(rounds.all[0]);
    rounds.all[0] = NULL;
}

static void a_failed_start_says_why(void **state)
{
    (void)state;
    struct suite s = {.backend = STARTED, .host = {.fail_after = 0}};
    ddstore_error err;
    ddstore_comm *comm = open_comm(&s, 0, 1);
    assert_int_equal(ddstore_comm_barrier(comm, &err), DDSTORE_EFABRIC);
    assert_non_null(strstr(err.message, "78"));
    assert_non_null(strstr(err.message, "the cat sat on it"));
    ddstore_comm_close(comm);
    free(rounds.all[0]);
    rounds.all[0] = NULL;
}

/* -- many members -- */

static size_t a_few(int rank, int step)
{
    return (size_t)(rank + step) % 40;
}

static void case_many(int rank, int size, void *arg)
{
    atomic_int *steps = arg;
    ddstore_comm *comm = open_or_die(rank, size, 50);
    for (int i = 0; i < atomic_load(steps); i++)
        gather_once(comm, rank, size, i, a_few);
    ddstore_comm_close(comm);
}

static void a_thousand_members_meet_soon(void **state)
{
    (void)state;
    atomic_int steps = 0;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int round = 0; round < 2; round++) {
        unsigned long long before = atomic_load(&ddstore__dir_opens);
        double t = seconds();
        run_threads(1024, case_many, &steps);
        t = seconds() - t;
        double opens = (double)(atomic_load(&ddstore__dir_opens) - before) / 1024;
        printf("1024 members, meeting%s: %.2f s, %.2f opens a member\n",
               steps ? " and 1 step" : "", t, opens);
        assert_true(opens <= 4.0 * (steps + 1));
        if (!getenv("DDSTORE_TEST_SLOW_MACHINE"))
            assert_true(t < 10);
        atomic_store(&steps, 1);
    }
    assert_int_equal(count_files(shared, NULL), 0);
}

#define SUITE(name)                                                                    \
    cmocka_unit_test_setup_teardown(name##_gathers, setup, teardown),                  \
        cmocka_unit_test_setup_teardown(name##_takes_all_sizes, setup, teardown),      \
        cmocka_unit_test_setup_teardown(name##_holds_barriers, setup, teardown),       \
        cmocka_unit_test_setup_teardown(name##_checks_arguments, setup, teardown)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUITE(self),
        SUITE(file_one),
        SUITE(file_two),
        SUITE(file_five),
        SUITE(callback_one),
        SUITE(callback_four),
        SUITE(started_one),
        SUITE(started_four),
        TEST(forked_children_are_refused),
        TEST(bad_descriptions_are_refused),
        TEST(a_failed_callback_breaks_the_group),
        TEST(an_absent_member_is_named),
        TEST(a_failed_start_says_why),
        TEST(a_thousand_members_meet_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The progress thread: it sleeps while nothing happens, and answers while its process
 * does. */
#include "raw.h"

static const core_spec one = {
    .size = 1, .rows = {100}, .disp = 1000, .itemsize = 1, .seed = SEED};

/* Nanoseconds that a process's first thread and the library's have run; a sanitizer may
 * have a thread of its own. */
static long long run_ns(pid_t pid)
{
    char path[300], name[32];
    long long sum = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (*e->d_name == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)pid, e->d_name);
        FILE *f = fopen(path, "r");
        if (!f)
            continue;
        const char *got = fgets(name, sizeof(name), f);
        fclose(f);
        if (!got || (atoi(e->d_name) != pid && strcmp(name, "ddstore\n") != 0))
            continue;
        long long ns;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
        f = fopen(path, "r");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "%lld", &ns), 1);
        fclose(f);
        sum += ns;
    }
    closedir(d);
    return sum;
}

/* Whether a process uses under 0.1 % of a core: over one of five windows, since a busy
 * machine's caches and interrupts are charged to whoever runs. */
static bool idles(pid_t pid)
{
    for (int window = 0; window < 5; window++) {
        long long before = run_ns(pid);
        sleep_ms(2000);
        long long used = run_ns(pid) - before;
        if (used < 2000000)
            return true;
        fprintf(stderr, "process %d ran %lld us in 2 s\n", (int)pid, used / 1000);
    }
    return false;
}

static void nothing_to_do_costs_nothing(void **state)
{
    (void)state;
    group g = group_start(&one);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    assert_true(all_rows_are(var, &one, SEED)); /* with channels open */
    assert_true(idles(getpid()));
    assert_true(idles(g.at[0]->pid));
    ddstore_close(store);
    group_end(&g);
}

/* Strangers and a reader that takes nothing are looked at once a second, no more. */
static void waiting_costs_nothing(void **state)
{
    (void)state;
    group g = group_start(&one);
    ddstore__variable_record r = record_of("v.bin");
    raw_run runs[200];
    int stranger = raw_dial(&r.rank[0].contact), slow = raw_open(&r, 0);
    for (size_t i = 0; i < 200; i++)
        runs[i] = (raw_run){4096, 100000};
    raw_read(slow, r.rank[0].at.id, runs, 200, 200 * 100000);
    sleep_ms(200);
    assert_true(idles(g.at[0]->pid));
    close(stranger);
    close(slow);
    ddstore__record_free(&r);
    group_end(&g);
}

static void sleep_on(core *c, char what)
{
    (void)c, (void)what;
    sleep_ms(2500);
}

static void a_sleeping_core_serves(void **state)
{
    (void)state;
    core_spec spec = one;
    spec.body = sleep_on;
    group g = group_start(&spec);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    say(g.at[0]->fd, 's');
    int64_t since = ddstore__now_ns();
    for (int i = 0; i < 5; i++)
        assert_true(all_rows_are(var, &one, SEED));
    assert_true(seconds_since(since) < 2.4); /* it had not to wake up for it */
    EXPECT(g.at[0]->fd, 'k');
    ddstore_close(store);
    group_end(&g);
}

static void its_thread_takes_no_signals(void **state)
{
    (void)state;
    char path[300], text[4096] = "";
    group g = group_start(&one);
    snprintf(path, sizeof(path), "/proc/%d/task", (int)g.at[0]->pid);
    DIR *d = opendir(path);
    int found = 0;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)g.at[0]->pid,
                 e->d_name);
        FILE *f = *e->d_name == '.' ? NULL : fopen(path, "r");
        if (!f)
            continue;
        size_t n = fread(text, 1, sizeof(text) - 1, f);
        text[n] = '\0';
        fclose(f);
        if (strncmp(text, "Name:\tddstore\n", 14) != 0)
            continue;
        unsigned long long blocked;
        char *line = strstr(text, "SigBlk:");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "SigBlk: %llx", &blocked), 1);
        assert_true(blocked & 1ull << (SIGINT - 1) && blocked & 1ull << (SIGTERM - 1));
        found++;
    }
    closedir(d);
    assert_int_equal(found, 1); /* and there is one of it */
    group_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_to_do_costs_nothing),
        TEST(waiting_costs_nothing),
        TEST(a_sleeping_core_serves),
        TEST(its_thread_takes_no_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

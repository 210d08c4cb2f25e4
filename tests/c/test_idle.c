/* The progress thread: it sleeps while nothing happens, and answers while its process
 * does. */
#include "raw.h"

static const core_spec one = {
    .size = 1, .rows = {100}, .disp = 1000, .itemsize = 1, .seed = SEED};

/* Clock ticks that a process's first thread and the library's have used; a sanitizer
 * may have one of its own. */
static long ticks_of(pid_t pid)
{
    char path[300], text[1024];
    long sum = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (*e->d_name == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, e->d_name);
        FILE *f = fopen(path, "r");
        if (!f)
            continue;
        size_t n = fread(text, 1, sizeof(text) - 1, f);
        fclose(f);
        text[n] = '\0';
        char *p = strrchr(text, ')');
        long user = 0, system = 0;
        assert_non_null(p);
        if (atoi(e->d_name) != pid && !strstr(text, "(ddstore"))
            continue;
        assert_int_equal(sscanf(p + 2,
                                "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld",
                                &user, &system),
                         2);
        sum += user + system;
    }
    closedir(d);
    return sum;
}

static void nothing_to_do_costs_nothing(void **state)
{
    (void)state;
    group g = group_start(&one);
    ddstore *store = extra_open(by_tcp, 1);
    ddstore_var *var = extra_join(store, "v");
    assert_true(all_rows_are(var, &one, SEED)); /* with channels open */
    long here = ticks_of(getpid()), there = ticks_of(g.at[0]->pid);
    sleep_ms(2000);
    assert_true(ticks_of(getpid()) - here <= 1);
    assert_true(ticks_of(g.at[0]->pid) - there <= 1);
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
    long there = ticks_of(g.at[0]->pid);
    sleep_ms(2000);
    assert_true(ticks_of(g.at[0]->pid) - there <= 1);
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

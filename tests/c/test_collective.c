/* Collective calls: what is wrong on one rank fails on all, names that rank, and leaves
 * the store usable. */
#include "core.h"

static const core_spec three = {
    .size = 3, .rows = {4, 0, 5}, .disp = 2, .itemsize = 4, .seed = SEED};

/* One kind of failure: what rank r adds, and what everyone hears. */
static const struct wrong {
    char order;
    const char *name[3];
    ddstore_shard shard[3];
    int code;
    const char *words[2];
} wrongs[] = {
    {'a',
     {"w", "", "w"},
     {{1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}},
     DDSTORE_EINVAL,
     {"rank 1", "1 to 1,024 bytes"}},
    {'b',
     {"w", "w", "w"},
     {{1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}, {1, 1, 0, "", "1"}},
     DDSTORE_EINVAL,
     {"rank 2", "itemsize is 0"}},
    {'c',
     {"w", "w", "w"},
     {{1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}, {1, 1, 1, "yy", "1"}},
     DDSTORE_ETYPE,
     {"dtype yy on rank 2", "x on rank 0"}},
    {'d',
     {"w", "w", "w"},
     {{1, 2, 1, "x", "12"}, {1, 3, 1, "x", "123"}, {1, 2, 1, "x", "12"}},
     DDSTORE_EINVAL,
     {"3 elements", "rank 1"}},
    {'e',
     {"w", "w", "u"},
     {{1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}},
     DDSTORE_EINVAL,
     {"rank 2", "variable u"}},
    {'g',
     {"w", "w", "w"},
     {{1, 1, 1, "x", "1"}, {1ll << 40, 1, 1, "x", NULL}, {1, 1, 1, "x", "1"}},
     DDSTORE_ENOMEM,
     {"rank ", "MiB"}},
    {'h',
     {"v", "v", "v"},
     {{1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}, {1, 1, 1, "x", "1"}},
     DDSTORE_EINVAL,
     {"rank ", "variable v exists already"}},
    {'i',
     {"w", "w", "w"},
     {{1, 1, 1, "x", "1"}, {-7, 1, 1, "x", "1"}, {-8, 1, 1, "x", "1"}},
     DDSTORE_EINVAL,
     {"rank ", " rows"}},
    {'j',
     {"w", "w", "w"},
     {{1, 1, 1, "x", "1"}, {1, 1, 2, "x", "11"}, {1, 1, 1, "x", "1"}},
     DDSTORE_EINVAL,
     {"rank 1", "of 2"}},
};

static void add_wrong(core *c, char what)
{
    ddstore_var *var = NULL;
    if (what == 'F') { /* a failure of the caller's own, on rank 1 */
        ddstore_shard shard = {1, 1, 1, "x", "1"};
        ddstore_error own = {.code = DDSTORE_ETYPE, .message = "no such array"};
        if (c->rank == 1)
            CHECK_FAILS(ddstore_add_failed(c->store, "w", &own, &fault), DDSTORE_ETYPE,
                        "no such array");
        else
            CHECK_FAILS(ddstore_add(c->store, "w", &shard, &var, &fault), DDSTORE_ETYPE,
                        "rank 1", "no such array");
        return;
    }
    if (what == '+') { /* shards without rows agree with anything */
        ddstore_shard shard = {c->spec->rows[c->rank], 2, 4, "x", NULL};
        if (!shard.rows)
            shard = (ddstore_shard){0, 9, 9, "other", NULL};
        CHECK(ddstore_add(c->store, "good", &shard, &var, &fault) == 0);
        return;
    }
    for (size_t i = 0; i < DDSTORE__COUNT(wrongs); i++) {
        const struct wrong *w = &wrongs[i];
        if (w->order != what)
            continue;
        CHECK_FAILS(
            ddstore_add(c->store, w->name[c->rank], &w->shard[c->rank], &var, &fault),
            w->code, w->words[0], w->words[1]);
        CHECK(!var && !ddstore_find(c->store, "w"));
    }
}

static void order_all(group *g, char what)
{
    for (int r = 0; r < g->size; r++)
        say(g->at[r]->fd, what);
    for (int r = 0; r < g->size; r++)
        EXPECT(g->at[r]->fd, 'k');
}

static void wrong_variables_fail_everywhere(void **state)
{
    (void)state;
    for (int method = 1; method <= 2; method++) {
        core_spec spec = three;
        spec.method = method;
        spec.body = add_wrong;
        group g = group_start(&spec);
        for (size_t i = 0; i < DDSTORE__COUNT(wrongs); i++)
            order_all(&g, wrongs[i].order);
        order_all(&g, 'F');
        order_all(&g, '+');
        group_end(&g);
    }
}

/* What the ranks open with; rank 1 differs. */
static const struct opening {
    int method[3];
    ddstore_setting setting[3];
    bool other_version;
    int code;
    const char *words[2];
} openings[] = {
    {{1, 2, 1}, {{0}}, false, DDSTORE_EINVAL, {"rank 1", "method 2"}},
    {{1, 1, 1},
     {{"DDSTORE_FABRIC", "tcp"}, {"DDSTORE_FABRIC", "auto"}, {"DDSTORE_FABRIC", "tcp"}},
     false,
     DDSTORE_EFABRIC,
     {"auto on rank 1", "tcp on rank 0"}},
    {{1, 1, 1},
     {{"DDSTORE_ALLTOALL_MAX_BYTES", "1M"},
      {"DDSTORE_ALLTOALL_MAX_BYTES", "2M"},
      {"DDSTORE_ALLTOALL_MAX_BYTES", "1M"}},
     false,
     DDSTORE_EINVAL,
     {"DDSTORE_ALLTOALL_MAX_BYTES", "rank 1"}},
    {{1, 1, 1},
     {{0}, {"DDSTORE_SHM", "2"}, {0}},
     false,
     DDSTORE_EINVAL,
     {"rank 1", "DDSTORE_SHM=2"}},
    {{1, 9, 1}, {{0}}, false, DDSTORE_EINVAL, {"rank 1", "method is 9"}},
    {{1, 1, 1}, {{0}}, true, DDSTORE_EINVAL, {"rank 1", "version"}},
    {{1, 1, 1},
     {{0}, {"FABRIC_IFACE", "nosuch0"}, {0}},
     false,
     DDSTORE_EFABRIC,
     {"rank 1", "nosuch0"}},
};

struct opener {
    const struct opening *how;
    int rank;
    char ns[16];
};

static void open_wrong(int fd, void *arg)
{
    const struct opener *o = arg;
    const struct opening *how = o->how;
    ddstore *store = NULL;
    ddstore_comm_file file = {dir, o->ns, o->rank, 3, 40};
    ddstore_options options = {.struct_bytes = sizeof(options),
                               .method = how->method[o->rank],
                               .handshake_dir = dir,
                               .exchange_ns = o->ns,
                               .settings = &how->setting[o->rank],
                               .n_settings = how->setting[o->rank].name != NULL};
    options.struct_bytes -= how->other_version && o->rank == 1;
    int64_t since = ddstore__now_ns();
    CHECK_FAILS(ddstore_open_file(&file, &options, &store, &fault), how->code,
                how->words[0], how->words[1]);
    CHECK(!store && seconds_since(since) < 20);
    say(fd, 'k');
}

static void wrong_openings_fail_everywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDSTORE__COUNT(openings); i++) {
        member *m[3];
        for (int r = 0; r < 3; r++) {
            struct opener o = {&openings[i], r, ""};
            snprintf(o.ns, sizeof(o.ns), "g%zu", i);
            m[r] = member_start(open_wrong, &o);
        }
        for (int r = 0; r < 3; r++)
            EXPECT(m[r]->fd, 'k');
        for (int r = 0; r < 3; r++)
            member_end(m[r]);
    }
}

static void epochs(core *c, char what)
{
    (void)what;
    for (int i = 0; i < 3; i++)
        CHECK(all_rows_are(c->var, c->spec, SEED));
}

static void variables_are_added_while_others_are_read(void **state)
{
    (void)state;
    core_spec spec = three;
    spec.body = epochs;
    group g = group_start(&spec);
    order_all(&g, 'e');
    group_end(&g);
}

static int stop_soon(void *arg)
{
    return ++*(int *)arg > 5;
}

static void interrupted_alone(core *c, char what)
{
    int calls = 0;
    ddstore_shard shard = {1, 1, 1, "x", "1"};
    (void)what;
    ddstore_set_interrupt(stop_soon, &calls);
    CHECK_FAILS(ddstore_add(c->store, "w", &shard, NULL, &fault), DDSTORE_EINTR, "");
    ddstore_set_interrupt(NULL, NULL);
}

static void a_waiting_collective_is_interrupted(void **state)
{
    (void)state;
    for (int r = 0; r <= 2; r += 2) {
        core_spec spec = three;
        spec.body = interrupted_alone;
        group g = group_start(&spec);
        ORDER(g.at[r], 'i');
        group_end(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(wrong_variables_fail_everywhere),
        TEST(wrong_openings_fail_everywhere),
        TEST(variables_are_added_while_others_are_read),
        TEST(a_waiting_collective_is_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

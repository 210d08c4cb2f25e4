/* A core group in processes of its own, and an extra member of it in the test's
 * process. */
#ifndef CORE_H
#define CORE_H

#include "support.h"

#define SEED 7

static const ddstore_setting by_tcp[] = {{"DDSTORE_SHM", "0"}};

typedef struct core_spec core_spec;

/* One core rank, as its process sees it. */
typedef struct core {
    const core_spec *spec;
    int rank, fd;
    int64_t start; /* its first global row */
    ddstore *store;
    ddstore_var *var;
} core;

/* Shared by the test and its members, which begin as copies of it. */
struct core_spec {
    int size, method; /* method 0: 2 */
    int64_t rows[8];  /* of each rank */
    uint64_t disp;
    uint32_t itemsize;
    uint8_t seed;
    const char *name, *ns, *run_id;  /* nullable */
    const ddstore_setting *settings; /* of the core ranks */
    size_t n_settings;
    void (*body)(core *self,
                 char what); /* answers what the test says beside 'f', 'u' */
};

typedef struct group {
    member *at[8];
    int size;
} group;

static inline uint64_t row_bytes_of(const core_spec *s)
{
    return s->disp * s->itemsize;
}

static inline int64_t total_of(const core_spec *s)
{
    int64_t total = 0;
    for (int r = 0; r < s->size; r++)
        total += s->rows[r];
    return total;
}

static inline void core_open(core *c)
{
    const core_spec *s = c->spec;
    ddstore_comm_file how = {.dir = dir,
                             .ns = s->ns ? s->ns : "t",
                             .rank = c->rank,
                             .size = s->size,
                             .timeout_s = 40};
    ddstore_options options = {.struct_bytes = sizeof(options),
                               .method = s->method ? s->method : 2,
                               .handshake_dir = dir,
                               .exchange_ns = how.ns,
                               .settings = s->settings,
                               .n_settings = s->n_settings};
    if (s->run_id)
        setenv("DDSTORE_RUN_ID", s->run_id, 1);
    CHECK(ddstore_open_file(&how, &options, &c->store, &fault) == 0);
}

static inline void core_add(core *c, const char *name, uint8_t seed)
{
    const core_spec *s = c->spec;
    uint64_t bytes = (uint64_t)s->rows[c->rank] * row_bytes_of(s);
    uint8_t *data = malloc(bytes + 1);
    CHECK(data);
    c->start = 0;
    for (int r = 0; r < c->rank; r++)
        c->start += s->rows[r];
    fill_rows(data, c->start, s->rows[c->rank], row_bytes_of(s), seed);
    ddstore_shard shard = {.rows = s->rows[c->rank],
                           .disp = s->disp,
                           .itemsize = s->itemsize,
                           .dtype = "x",
                           .data = data};
    CHECK(ddstore_add(c->store, name, &shard, &c->var, &fault) == 0);
    free(data);
}

/* Orders: 'f' free the store; 'u' overwrite all rows with those of the next seed;
 * others are the body's. */
static inline void core_serve(core *c)
{
    for (char what; (what = hear(c->fd));) {
        if (what == 'f') {
            ddstore_free(c->store);
        } else if (what == 'u') {
            int64_t rows = c->spec->rows[c->rank];
            uint8_t *data = malloc((uint64_t)rows * row_bytes_of(c->spec) + 1);
            CHECK(data);
            fill_rows(data, c->start, rows, row_bytes_of(c->spec),
                      (uint8_t)(c->spec->seed + 1));
            CHECK(ddstore_update(c->var, data, rows, 0, &fault) == 0);
            free(data);
        } else {
            CHECK(c->spec->body);
            c->spec->body(c, what);
        }
        say(c->fd, 'k');
    }
}

static inline void core_main(int fd, void *arg)
{
    core *c = arg;
    c->fd = fd;
    if (hear(fd) != 'g')
        return; /* it was not needed */
    core_open(c);
    core_add(c, c->spec->name ? c->spec->name : "v", c->spec->seed);
    say(fd, 'k');
    core_serve(c);
    ddstore_close(c->store);
}

/* All core ranks, which wait for group_go. */
static inline group group_fork(const core_spec *spec)
{
    group g = {.size = spec->size};
    for (int r = 0; r < spec->size; r++) {
        core c = {.spec = spec, .rank = r};
        g.at[r] = member_start(core_main, &c);
    }
    return g;
}

static inline void group_go(const group *g)
{
    for (int r = 0; r < g->size; r++)
        say(g->at[r]->fd, 'g');
    for (int r = 0; r < g->size; r++)
        EXPECT(g->at[r]->fd, 'k');
}

/* All core ranks, serving. */
static inline group group_start(const core_spec *spec)
{
    group g = group_fork(spec);
    group_go(&g);
    return g;
}

static inline void group_end(group *g)
{
    for (int r = 0; r < g->size; r++)
        if (g->at[r]->pid)
            shutdown(g->at[r]->fd, SHUT_WR);
    for (int r = 0; r < g->size; r++)
        member_end(g->at[r]);
}

static inline ddstore *extra_open(const ddstore_setting *settings, size_t n)
{
    ddstore *store = NULL;
    ddstore_options options = {.struct_bytes = sizeof(options),
                               .method = 2,
                               .handshake_dir = dir,
                               .settings = settings,
                               .n_settings = n};
    CHECK(ddstore_open_extra(&options, &store, &fault) == 0);
    return store;
}

static inline ddstore_var *extra_join(ddstore *store, const char *name)
{
    ddstore_var *var = NULL;
    CHECK(ddstore_join(store, name, &var, &fault) == 0);
    return var;
}

/* All rows, by get a shard and by one shuffled batch, are those of the seed. */
static inline bool all_rows_are(ddstore_var *var, const core_spec *s, uint8_t seed)
{
    int64_t total = total_of(s), start = 0;
    uint64_t row_bytes = row_bytes_of(s), random = 1;
    uint8_t *got = malloc((uint64_t)total * row_bytes + 1);
    int64_t *rows = malloc((uint64_t)total * sizeof(*rows) + 1);
    CHECK(got && rows);
    bool good = true;
    for (int r = 0; good && r < s->size; start += s->rows[r++]) {
        CHECK(ddstore_get(var, start, s->rows[r], got, &fault) == 0);
        good = rows_are(got, start, s->rows[r], row_bytes, seed);
    }
    for (int64_t i = 0; i < total; i++) {
        int64_t j = (int64_t)(next_random(&random) % (uint64_t)(i + 1));
        rows[i] = rows[j];
        rows[j] = i;
    }
    memset(got, 0, (uint64_t)total * row_bytes);
    CHECK(ddstore_get_batch(var, rows, (size_t)total, got, &fault) == 0);
    good = good && batch_is(got, rows, (size_t)total, row_bytes, seed);
    free(got);
    free(rows);
    return good;
}

/* -- forked children -- */

/* Runs fn in a forked child, whose checks must all hold. */
static inline void in_child(void (*fn)(ddstore *, ddstore_var *), ddstore *store,
                            ddstore_var *var)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        in_member = true;
        alarm(60);
        fn(store, var);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

/* The parent's sockets, memory, pidfds and events were closed, or never came here. */
static inline void check_nothing_is_inherited(void)
{
    for (int fd = 3; fd < 1000; fd++) {
        char path[64], what[200];
        struct sockaddr_storage at = {0};
        socklen_t bytes = sizeof(at);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, what, sizeof(what) - 1);
        what[n > 0 ? n : 0] = '\0';
        CHECK(!strstr(what, "memfd:ddstore") && !strstr(what, "eventpoll") &&
              !strstr(what, "eventfd") && !strstr(what, "pidfd"));
        if (n > 0 && getsockname(fd, (struct sockaddr *)&at, &bytes) == 0)
            CHECK(at.ss_family != AF_INET && at.ss_family != AF_INET6);
    }
}

/* A reader of what a store has, opened here. */
static inline ddstore *reader_open(const ddstore *store,
                                   const ddstore_setting *settings, size_t n)
{
    void *data;
    size_t bytes;
    ddstore *reader = NULL;
    CHECK(ddstore_describe(store, &data, &bytes, &fault) == 0);
    CHECK(ddstore_open_reader(data, bytes, settings, n, &reader, &fault) == 0);
    ddstore_release(data);
    return reader;
}

#endif

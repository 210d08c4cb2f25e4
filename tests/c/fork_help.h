/* What tests of forked processes share: rows to read, and what a child does. */
#ifndef FORK_HELP_H
#define FORK_HELP_H

#include "core.h"
#include "store.h"

#ifdef __SANITIZE_THREAD__
#define FOLLOWED false /* it can't follow a child that starts threads */
#else
#define FOLLOWED true
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOCATES false     /* another thread may hold the sanitizer's lock for ever */
#define FORKS(n)  ((n) / 5) /* each copies its tables */
#else
#define ALLOCATES true
#define FORKS(n)  (n)
#endif

static const core_spec two = {
    .size = 2, .rows = {30, 40}, .disp = 100, .itemsize = 1, .seed = SEED};

static inline ddstore_var *var_of(ddstore *store, const char *name)
{
    ddstore_var *var = ddstore_find(store, name);
    CHECK(var);
    return var;
}

static inline void check_reader(ddstore *reader, int rank)
{
    ddstore_var *var = var_of(reader, "v");
    ddstore_var_info info;
    int alive = 0;
    CHECK(ddstore_info(var, &info) == 0);
    CHECK(info.total_rows == 70 && info.disp == 100 && info.itemsize == 1);
    CHECK(strcmp(info.name, "v") == 0 && strcmp(info.dtype, "x") == 0);
    CHECK(ddstore_rank(reader) == rank && ddstore_size(reader) == 2);
    CHECK(ddstore_var_at(reader, 0) == var && !ddstore_var_at(reader, 1));
    CHECK(ddstore_core_alive(reader, &alive, &fault) == 0 && alive);
    CHECK(all_rows_are(var, &two, SEED));
}

static inline void readers_of(ddstore *store, int rank)
{
    for (size_t n = 0; n <= 1; n++) {
        ddstore *first = reader_open(store, by_tcp, n);
        ddstore *second = reader_open(first, by_tcp, n); /* a reader's reader */
        check_reader(first, rank);
        ddstore_close(first);
        check_reader(second, rank);
        ddstore_close(second);
    }
}

static inline void read_in_child(ddstore *store, ddstore_var *var)
{
    uint8_t got[100];
    CHECK_FAILS(ddstore_get(var, 0, 1, got, &fault), DDSTORE_EFORKED, "fork_reader");
    readers_of(store, ddstore_rank(store));
    CHECK_FAILS(ddstore_get(var, 0, 1, got, &fault), DDSTORE_EFORKED, "fork_reader");
    ddstore_close(store); /* the parent's: nothing happens */
}

static inline void look_in_child(ddstore *store, ddstore_var *var)
{
    uint8_t got[100];
    void *data;
    size_t bytes;
    check_nothing_is_inherited();
    CHECK_FAILS(ddstore_get(var, 0, 1, got, &fault), DDSTORE_EFORKED, "fork_reader");
    if (!ALLOCATES)
        return;
    CHECK(ddstore_describe(store, &data, &bytes, &fault) == 0);
    ddstore_release(data);
}

#endif

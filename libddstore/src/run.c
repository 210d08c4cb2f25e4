/* Runs: the table of groups that this process serves, and the records they publish. */
#include "run.h"

#include "progress.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* runs, refs, members, records */
static ddstore__run *runs;

static ddstore__run *find_locked(const uint8_t id[16])
{
    for (ddstore__run *r = runs; r; r = r->next)
        if (ddstore__same16(r->id, id))
            return r;
    return NULL;
}

ddstore__run *ddstore__run_open(const uint8_t id[16], const uint8_t secret[16])
{
    pthread_mutex_lock(&lock);
    ddstore__run *run = find_locked(id);
    if (!run && (run = calloc(1, sizeof(*run)))) {
        memcpy(run->id, id, 16);
        memcpy(run->secret, secret, 16);
        run->next = runs;
        runs = run;
    }
    if (run) {
        run->refs++;
        run->members++;
    }
    pthread_mutex_unlock(&lock);
    return run;
}

ddstore__run *ddstore__run_find(const uint8_t id[16])
{
    pthread_mutex_lock(&lock);
    ddstore__run *run = find_locked(id);
    if (run)
        run->refs++;
    pthread_mutex_unlock(&lock);
    return run;
}

static void free_record(ddstore__record *r)
{
    free(r->name);
    free(r->data);
    free(r);
}

static void unref_locked(ddstore__run *run)
{
    if (--run->refs)
        return;
    while (run->records) {
        ddstore__record *r = run->records;
        run->records = r->next;
        free_record(r);
    }
    free(run);
}

void ddstore__run_unref(ddstore__run *run)
{
    pthread_mutex_lock(&lock);
    unref_locked(run);
    pthread_mutex_unlock(&lock);
}

void ddstore__run_close(ddstore__run *run)
{
    if (!run)
        return;
    pthread_mutex_lock(&lock);
    bool last = --run->members == 0;
    if (last) {
        for (ddstore__run **at = &runs; *at; at = &(*at)->next)
            if (*at == run) {
                *at = run->next;
                break;
            }
        atomic_store(&run->closing, 1);
    }
    pthread_mutex_unlock(&lock);
    if (last)
        ddstore__progress_tell_closing();
    ddstore__run_unref(run);
}

void ddstore__run_close_all(void)
{
    pthread_mutex_lock(&lock);
    for (ddstore__run *r = runs; r; r = r->next)
        atomic_store(&r->closing, 1);
    pthread_mutex_unlock(&lock);
}

int ddstore__run_publish(ddstore__run *run, const char *name, const void *data,
                         size_t bytes)
{
    ddstore__record *r = calloc(1, sizeof(*r));
    if (!r)
        return DDSTORE_ENOMEM;
    r->name = strdup(name);
    r->data = malloc(bytes ? bytes : 1);
    r->bytes = bytes;
    if (!r->name || !r->data) {
        free_record(r);
        return DDSTORE_ENOMEM;
    }
    memcpy(r->data, data, bytes);
    pthread_mutex_lock(&lock);
    r->next = run->records;
    run->records = r; /* the newest of a name is found first */
    pthread_mutex_unlock(&lock);
    return DDSTORE_OK;
}

uint8_t *ddstore__run_record(ddstore__run *run, const char *name, size_t *bytes)
{
    uint8_t *copy = NULL;
    pthread_mutex_lock(&lock);
    for (ddstore__record *r = run->records; r && !copy; r = r->next)
        if (strcmp(r->name, name) == 0 && (copy = malloc(r->bytes ? r->bytes : 1))) {
            memcpy(copy, r->data, r->bytes);
            *bytes = r->bytes;
        }
    pthread_mutex_unlock(&lock);
    return copy;
}

void ddstore__run_child(void)
{
    pthread_mutex_init(&lock, NULL);
    runs = NULL;
}

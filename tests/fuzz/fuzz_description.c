/* Fuzzes the decoder of descriptions: nothing is read beyond the end, no more is
 * allocated than the bytes can pay for, and what is accepted comes out the same when
 * written again. */
#include "fuzz.h"

#include "description.h"

static void check_variable(const ddstore__description *d, uint32_t group,
                           const ddstore__variable_record *r)
{
    must(group < d->n_groups && d->group[group].ranks == r->ranks);
    must(r->ranks > d->rank && r->name && r->dtype && r->rank);
    must(strlen(r->name) <= DDSTORE__TEXT_MAX && ddstore__record_fits(r));
    for (int i = 0; i < r->ranks; i++)
        must(r->rank[i].rows >= 0);
}

/* Groups that have come since the last look. */
static void copy_groups(const ddstore__description *d, uint32_t *done,
                        ddstore__buffer *copy)
{
    for (; *done < d->n_groups; ++*done) {
        const ddstore__group_record *g = &d->group[*done];
        must(g->ranks > 0 && g->ranks > d->rank);
        ddstore__description_add_group(copy, g->run, g->secret, g->ranks);
        for (int i = 0; i < g->ranks; i++)
            ddstore__description_add_contact(copy, &g->contact[i]);
    }
}

/* Reads all of it and writes it again; how it ended. */
static int read_all(const uint8_t *data, size_t size, ddstore__buffer *copy)
{
    ddstore__description d;
    ddstore__variable_record r;
    uint32_t group, done = 0;
    int rc = ddstore__description_open(data, size, &d);
    must(rc == DDSTORE_OK || rc == DDSTORE_EINVAL);
    if (!rc) {
        must((d.method == 1 || d.method == 2) && d.rank >= -1);
        must(strlen(d.ns) < sizeof(d.ns));
        ddstore__description_begin(copy, d.method, d.rank, d.ns);
        while ((rc = ddstore__description_next(&d, &group, &r)) == 1) {
            copy_groups(&d, &done, copy);
            check_variable(&d, group, &r);
            ddstore__description_add_variable(copy, group, &r);
            ddstore__record_free(&r);
        }
        must(rc == 0 || rc == DDSTORE_EINVAL);
        must(!r.name && !r.dtype && !r.rank);
        copy_groups(&d, &done, copy);
        must(rc || d.current == DDSTORE__NO_GROUP || d.current < d.n_groups);
        ddstore__description_end(copy, d.current);
    }
    ddstore__description_close(&d);
    return rc;
}

static void try_description(const uint8_t *data, size_t size)
{
    ddstore__buffer copy = {0}, again = {0};
    if (read_all(data, size, &copy) == 0) {
        must(!copy.failed && read_all(copy.data, copy.bytes, &again) == 0);
        must(again.bytes == copy.bytes);
        must(memcmp(again.data, copy.data, copy.bytes) == 0);
    }
    free(copy.data);
    free(again.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_mended(data, size, try_description);
    return 0;
}

/* Fuzzes the decoder of records: nothing is read beyond the end, and what is accepted
 * fits together and comes out the same when written again. */
#include "fuzz.h"

#include "record.h"

static void check(const ddstore__variable_record *r)
{
    uint64_t row_bytes = 0;
    must(r->ranks > 0 && r->name && r->dtype && r->rank);
    must(strlen(r->name) <= DDSTORE__TEXT_MAX && strlen(r->ns) < sizeof(r->ns));
    must(!__builtin_mul_overflow(r->disp, (uint64_t)r->itemsize, &row_bytes));
    for (int i = 0; i < r->ranks; i++) {
        must(r->rank[i].rows >= 0);
        must((uint64_t)r->rank[i].rows * row_bytes == r->rank[i].at.bytes);
    }
    ddstore__buffer b = {0};
    ddstore__variable_record again;
    ddstore__record_encode(r, &b);
    must(!b.failed && ddstore__record_decode(b.data, b.bytes, &again) == DDSTORE_OK);
    must(strcmp(again.name, r->name) == 0 && strcmp(again.dtype, r->dtype) == 0);
    must(again.ranks == r->ranks && again.disp == r->disp);
    ddstore__record_free(&again);
    free(b.data);
}

static void try_record(const uint8_t *data, size_t size)
{
    ddstore__variable_record r;
    int rc = ddstore__record_decode(data, size, &r);
    must(rc == DDSTORE_OK || rc == DDSTORE_EINVAL);
    if (rc == DDSTORE_OK)
        check(&r);
    ddstore__record_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_mended(data, size, try_record);
    return 0;
}

/* Records: round trips, and the refusal of damage and of what doesn't fit together. */
#include "support.h"

#include "record.h"

static ddstore__rank_record ranks[3];
static ddstore__variable_record whole;

static int make(void **state)
{
    static char name[] = "trainset/record_array", dtype[] = "<f4";
    whole = (ddstore__variable_record){.ns = "t",
                                       .name = name,
                                       .dtype = dtype,
                                       .disp = 3,
                                       .itemsize = 4,
                                       .ranks = 3,
                                       .rank = ranks};
    ddstore__random(whole.run, 16);
    ddstore__random(whole.secret, 16);
    for (int i = 0; i < 3; i++) {
        ranks[i] = (ddstore__rank_record){.rows = 1000 * i};
        ddstore__random(ranks[i].contact.uid, 16);
        ranks[i].contact.address[0].family = 4;
        ranks[i].at.bytes = 12000 * (uint64_t)i;
        ranks[i].at.id = 5 + (uint64_t)i;
    }
    return setup(state);
}

static ddstore__buffer encode(void)
{
    ddstore__buffer b = {0};
    ddstore__record_encode(&whole, &b);
    assert_false(b.failed);
    return b;
}

/* Refused; and freeing what came out is safe. */
static bool refused(const uint8_t *data, size_t bytes)
{
    ddstore__variable_record out;
    int rc = ddstore__record_decode(data, bytes, &out);
    ddstore__record_free(&out);
    return rc == DDSTORE_EINVAL;
}

static bool encodes_to_a_refused_one(void)
{
    ddstore__buffer b = encode();
    bool result = refused(b.data, b.bytes);
    free(b.data);
    return result;
}

static void records_come_back(void **state)
{
    (void)state;
    ddstore__buffer b = encode();
    ddstore__variable_record out;
    assert_int_equal(ddstore__record_decode(b.data, b.bytes, &out), 0);
    assert_memory_equal(out.run, whole.run, 16);
    assert_memory_equal(out.secret, whole.secret, 16);
    assert_string_equal(out.ns, "t");
    assert_string_equal(out.name, whole.name);
    assert_string_equal(out.dtype, whole.dtype);
    assert_true(out.disp == 3 && out.itemsize == 4 && out.ranks == 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out.rank[i].rows, 1000 * i);
        assert_int_equal(out.rank[i].at.id, 5 + i);
        assert_memory_equal(out.rank[i].contact.uid, ranks[i].contact.uid, 16);
    }
    ddstore__record_free(&out);
    free(b.data);
}

static void records_are_appended(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    ddstore__add_bytes(&b, "before", 6);
    ddstore__record_encode(&whole, &b);
    ddstore__variable_record out;
    assert_int_equal(ddstore__record_decode(b.data + 6, b.bytes - 6, &out), 0);
    ddstore__record_free(&out);
    free(b.data);
}

static void every_damaged_byte_is_seen(void **state)
{
    (void)state;
    ddstore__buffer b = encode();
    for (size_t i = 0; i < b.bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            b.data[i] ^= (uint8_t)(1 << bit);
            assert_true(refused(b.data, b.bytes));
            b.data[i] ^= (uint8_t)(1 << bit);
        }
    assert_false(refused(b.data, b.bytes));
    free(b.data);
}

static void every_cut_is_seen(void **state)
{
    (void)state;
    ddstore__buffer b = encode();
    for (size_t n = 0; n < b.bytes; n++) {
        uint8_t *exact = malloc(n + !n); /* so that a read past the end is seen */
        memcpy(exact, b.data, n);
        assert_true(refused(exact, n));
        free(exact);
    }
    ddstore__add_bytes(&b, "", 1);
    assert_true(refused(b.data, b.bytes));
    free(b.data);
}

/* Damage with a checksum that fits it: every byte of the fields in front. */
static void damage_with_a_good_checksum_is_safe(void **state)
{
    (void)state;
    ddstore__buffer b = encode();
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    for (size_t i = 0; i < b.bytes - 8; i++)
        for (size_t v = 0; v < sizeof(values); v++) {
            uint8_t kept = b.data[i];
            b.data[i] = values[v];
            ddstore__put64(b.data + b.bytes - 8, ddstore__hash64(b.data, b.bytes - 8));
            ddstore__variable_record out;
            if (ddstore__record_decode(b.data, b.bytes, &out) == 0) {
                assert_int_equal(out.ranks, 3);
                assert_true(strlen(out.name) <= 1024 &&
                            strlen(out.ns) < sizeof(out.ns));
            }
            ddstore__record_free(&out);
            b.data[i] = kept;
        }
    free(b.data);
}

static void what_does_not_fit_together_is_refused(void **state)
{
    (void)state;
    ranks[1].rows = -1;
    assert_true(encodes_to_a_refused_one());
    ranks[1].rows = 1001; /* not as many as its segment has */
    assert_true(encodes_to_a_refused_one());
    ranks[1].rows = 1000;
    whole.disp = UINT64_MAX; /* the row's length overflows */
    assert_true(encodes_to_a_refused_one());
    whole.disp = 3;
    ranks[2].rows = INT64_MAX; /* the shard's does */
    assert_true(encodes_to_a_refused_one());
    ranks[2].rows = 2000;
    whole.ranks = 0;
    assert_true(encodes_to_a_refused_one());
    whole.ranks = 3;
    assert_false(encodes_to_a_refused_one());
}

static void names_are_bounded(void **state)
{
    (void)state;
    static char name[3000];
    memset(name, 'n', 1024);
    whole.name = name;
    assert_false(encodes_to_a_refused_one());
    name[1024] = 'n';
    assert_true(encodes_to_a_refused_one());
    ddstore__buffer b;
    name[1024] = '\0';
    b = encode();
    for (size_t i = 0; i + 2 < b.bytes; i++) /* a NUL within the name */
        if (b.data[i] == 'n' && b.data[i + 1] == 'n') {
            b.data[i + 1] = '\0';
            break;
        }
    ddstore__put64(b.data + b.bytes - 8, ddstore__hash64(b.data, b.bytes - 8));
    assert_true(refused(b.data, b.bytes));
    free(b.data);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(records_come_back),
        TEST(records_are_appended),
        TEST(every_damaged_byte_is_seen),
        TEST(every_cut_is_seen),
        TEST(damage_with_a_good_checksum_is_safe),
        TEST(what_does_not_fit_together_is_refused),
        TEST(names_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

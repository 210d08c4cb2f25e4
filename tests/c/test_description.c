/* Descriptions: round trips, and the refusal of damage and of what doesn't fit
 * together.
 */
#include "support.h"

#include "description.h"

static ddstore__rank_record ranks[3];
static ddstore__variable_record var;

static void make_var(int n)
{
    static char name[] = "trainset/pos", dtype[] = "<f4";
    var = (ddstore__variable_record){.name = name,
                                     .dtype = dtype,
                                     .disp = 3,
                                     .itemsize = 4,
                                     .ranks = n,
                                     .rank = ranks};
    for (int i = 0; i < n; i++) {
        ranks[i] = (ddstore__rank_record){.rows = 1000 * i};
        ranks[i].contact.uid[0] = (uint8_t)i;
        ranks[i].contact.address[0].family = 4;
        ranks[i].at.bytes = 12000 * (uint64_t)i;
        ranks[i].at.id = 5 + (uint64_t)i;
    }
}

static void add_group(ddstore__buffer *b, uint8_t run, int n)
{
    uint8_t id[16] = {run}, secret[16] = {1, run};
    make_var(n);
    ddstore__description_add_group(b, id, secret, n);
    for (int i = 0; i < n; i++)
        ddstore__description_add_contact(b, &ranks[i].contact);
}

/* How reading it ends: 0, or a negative code; *n is the number of variables. */
static int read_all(const ddstore__buffer *b, int *n)
{
    ddstore__description d;
    ddstore__variable_record r;
    uint32_t group;
    int rc = ddstore__description_open(b->data, b->bytes, &d);
    *n = 0;
    while (!rc && (rc = ddstore__description_next(&d, &group, &r)) == 1) {
        assert_string_equal(r.name, "trainset/pos");
        ddstore__record_free(&r);
        ++*n;
        rc = 0;
        if (*n > 10)
            break;
    }
    ddstore__description_close(&d);
    return rc;
}

static int end_of(ddstore__buffer *b)
{
    int n;
    int rc = read_all(b, &n);
    free(b->data);
    *b = (ddstore__buffer){0};
    return rc;
}

static void they_come_back(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    ddstore__description d;
    ddstore__variable_record r;
    uint32_t group;
    ddstore__description_begin(&b, 2, 1, "trainset");
    add_group(&b, 7, 3);
    ddstore__description_add_variable(&b, 0, &var);
    add_group(&b, 8, 2);
    ddstore__description_add_variable(&b, 1, &var);
    ddstore__description_end(&b, 1);
    assert_int_equal(ddstore__description_open(b.data, b.bytes, &d), 0);
    assert_int_equal(d.method, 2);
    assert_int_equal(d.rank, 1);
    assert_string_equal(d.ns, "trainset");
    for (int v = 0; v < 2; v++) {
        assert_int_equal(ddstore__description_next(&d, &group, &r), 1);
        assert_int_equal(group, v);
        assert_int_equal(r.ranks, 3 - v);
        assert_string_equal(r.dtype, "<f4");
        assert_int_equal(r.run[0], 7 + v);
        assert_int_equal(r.secret[1], 7 + v);
        assert_int_equal(r.disp, 3);
        assert_int_equal(r.itemsize, 4);
        for (int i = 0; i < r.ranks; i++) {
            assert_int_equal(r.rank[i].rows, 1000 * i);
            assert_int_equal(r.rank[i].at.id, 5 + i);
            assert_int_equal(r.rank[i].contact.uid[0], i);
        }
        ddstore__record_free(&r);
    }
    assert_int_equal(ddstore__description_next(&d, &group, &r), 0);
    assert_int_equal(d.current, 1);
    assert_int_equal(d.n_groups, 2);
    ddstore__description_close(&d);
    free(b.data);
}

static void cut_or_changed_ones_are_refused(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    int n;
    ddstore__description_begin(&b, 1, 0, "s0");
    add_group(&b, 7, 2);
    ddstore__description_add_variable(&b, 0, &var);
    ddstore__description_end(&b, 0);
    assert_int_equal(read_all(&b, &n), 0);
    assert_int_equal(n, 1);
    for (size_t i = 0; i < b.bytes; i++) {
        b.data[i] ^= 0x20;
        assert_int_equal(read_all(&b, &n), DDSTORE_EINVAL);
        b.data[i] ^= 0x20;
    }
    for (size_t bytes = b.bytes; bytes-- > 0;) {
        ddstore__buffer cut = {.data = malloc(bytes + 1), .bytes = bytes};
        memcpy(cut.data, b.data, bytes); /* so that reading beyond it is seen */
        assert_int_equal(read_all(&cut, &n), DDSTORE_EINVAL);
        if (bytes >= 8) { /* cut by somebody who knows the checksum */
            ddstore__put64(cut.data + bytes - 8, ddstore__hash64(cut.data, bytes - 8));
            assert_int_equal(read_all(&cut, &n), DDSTORE_EINVAL);
        }
        free(cut.data);
    }
    free(b.data);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    for (int method = -1; method <= 3; method++) {
        ddstore__description_begin(&b, method, -1, "");
        ddstore__description_end(&b, DDSTORE__NO_GROUP);
        assert_int_equal(end_of(&b), method == 1 || method == 2 ? 0 : DDSTORE_EINVAL);
    }
    for (int rank = -3; rank <= 3; rank++) {
        ddstore__description_begin(&b, 2, rank, "");
        add_group(&b, 7, 2);
        ddstore__description_end(&b, 0);
        assert_int_equal(end_of(&b), rank >= -1 && rank < 2 ? 0 : DDSTORE_EINVAL);
    }
    ddstore__description_begin(&b, 1, 0, ""); /* a core rank without a group */
    ddstore__description_end(&b, DDSTORE__NO_GROUP);
    assert_int_equal(end_of(&b), DDSTORE_EINVAL);
    ddstore__description_begin(&b, 1, 0, ""); /* a group that isn't there */
    add_group(&b, 7, 2);
    ddstore__description_end(&b, 1);
    assert_int_equal(end_of(&b), DDSTORE_EINVAL);
    ddstore__description_begin(&b, 2, -1, ""); /* a variable of one that comes later */
    make_var(2);
    ddstore__description_add_variable(&b, 0, &var);
    add_group(&b, 7, 2);
    ddstore__description_end(&b, 0);
    assert_int_equal(end_of(&b), DDSTORE_EINVAL);
    ddstore__description_begin(&b, 2, -1, ""); /* bytes behind the end */
    add_group(&b, 7, 2);
    ddstore__add32(&b, 0);
    ddstore__add32(&b, 0);
    ddstore__description_end(&b, 0);
    assert_int_equal(end_of(&b), DDSTORE_EINVAL);
    char long_ns[120] = "";
    memset(long_ns, 'n', 110);
    ddstore__description_begin(&b, 2, -1, long_ns);
    ddstore__description_end(&b, DDSTORE__NO_GROUP);
    assert_int_equal(end_of(&b), DDSTORE_EINVAL);
}

static void shapes_that_lie_are_refused(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    for (int lie = 0; lie < 5; lie++) {
        ddstore__description_begin(&b, 2, -1, "");
        add_group(&b, 7, 2);
        ranks[1].at.bytes += lie == 1;
        ranks[1].rows = lie == 2 ? -1 : ranks[1].rows;
        var.disp = lie == 3 ? UINT64_MAX : var.disp;
        var.ranks = lie == 4 ? 1 : 2; /* fewer than its group */
        ddstore__description_add_variable(&b, 0, &var);
        ddstore__description_end(&b, 0);
        assert_int_equal(end_of(&b), lie ? DDSTORE_EINVAL : 0);
    }
    /* A number of ranks that the bytes can't hold: nothing is allocated for them. */
    for (uint32_t n = 0; n < 32; n++) {
        ddstore__description_begin(&b, 2, -1, "");
        add_group(&b, 7, 2);
        ddstore__put32(b.data + 18, (1u << n) + 2);
        ddstore__description_end(&b, 0);
        assert_int_equal(end_of(&b), DDSTORE_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(they_come_back),
        TEST(cut_or_changed_ones_are_refused),
        TEST(what_does_not_fit_is_refused),
        TEST(shapes_that_lie_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What travels between processes: round trips, and the refusal of everything else. */
#include "support.h"

#include "wire.h"

static ddstore__contact some_contact(void)
{
    ddstore__contact c = {
        .process = {.pid_ns = 4026531836u, .start_time = 1u << 30, .pid = 77},
        .beacon_fd = 12,
        .provider = "tcp;ofi_rxm",
        .ofi_bytes = DDSTORE__OFI_ADDRESS};
    ddstore__random(c.uid, 16);
    ddstore__random(c.process.boot_id, 16);
    ddstore__random(c.beacon_token, 16);
    ddstore__random(c.ofi, sizeof(c.ofi));
    memset(c.process.host, 'h', sizeof(c.process.host) - 1);
    for (int i = 0; i < 3; i++) {
        ddstore__address *a = &c.address[i];
        *a = (ddstore__address){.family = i == 1 ? 6 : 4,
                                .port = (uint16_t)(65535 - i),
                                .scope = 0xfedcba98u};
        ddstore__random(a->ip, 16);
    }
    return c;
}

static void contacts_come_back(void **state)
{
    (void)state;
    ddstore__contact c = some_contact(), back;
    uint8_t wire[DDSTORE__CONTACT_BYTES], again[DDSTORE__CONTACT_BYTES];
    ddstore__contact_encode(&c, wire);
    assert_true(ddstore__contact_decode(wire, sizeof(wire), &back));
    ddstore__contact_encode(&back, again);
    assert_memory_equal(wire, again, sizeof(wire));
    assert_memory_equal(back.uid, c.uid, 16);
    assert_int_equal(back.process.pid, 77);
    assert_string_equal(back.process.host, c.process.host);
    assert_int_equal(back.address[2].port, 65533);
    assert_int_equal(back.address[1].family, 6);
    assert_int_equal(back.address[3].family, 0);
    assert_memory_equal(back.ofi, c.ofi, sizeof(c.ofi));
}

static void contacts_of_other_lengths_are_refused(void **state)
{
    (void)state;
    ddstore__contact c = some_contact(), back;
    uint8_t wire[DDSTORE__CONTACT_BYTES + 1] = {0};
    ddstore__contact_encode(&c, wire);
    for (size_t n = 0; n <= sizeof(wire); n++)
        assert_int_equal(ddstore__contact_decode(wire, n, &back),
                         n == DDSTORE__CONTACT_BYTES);
}

static void damaged_contacts_are_refused_or_safe(void **state)
{
    (void)state;
    ddstore__contact c = some_contact(), back;
    uint8_t wire[DDSTORE__CONTACT_BYTES];
    ddstore__contact_encode(&c, wire);
    for (size_t i = 0; i < sizeof(wire); i++) {
        uint8_t kept = wire[i];
        for (int bit = 0; bit < 8; bit++) {
            wire[i] = (uint8_t)(kept ^ 1 << bit);
            if (!ddstore__contact_decode(wire, sizeof(wire), &back))
                continue;
            assert_true(i >= 4); /* behind the magic word */
            assert_true(back.ofi_bytes <= DDSTORE__OFI_ADDRESS);
            for (int a = 0; a < DDSTORE__ADDRESSES; a++)
                assert_true(back.address[a].family == 0 ||
                            back.address[a].family == 4 || back.address[a].family == 6);
        }
        wire[i] = kept;
    }
    memset(wire + 56, 'x', 64); /* texts without their end */
    memset(wire + 240, 'y', 32);
    assert_true(ddstore__contact_decode(wire, sizeof(wire), &back));
    assert_true(strlen(back.process.host) < sizeof(back.process.host));
    assert_true(strlen(back.provider) < sizeof(back.provider));
}

static void descriptors_come_back(void **state)
{
    (void)state;
    ddstore__descriptor d = {.id = UINT64_MAX,
                             .bytes = (1ull << 62) - 1,
                             .fd = UINT32_MAX,
                             .ofi_base = 1ull << 63,
                             .ofi_key = 0x1234567890abcdefu},
                        back;
    uint8_t wire[DDSTORE__DESCRIPTOR_BYTES + 1], again[DDSTORE__DESCRIPTOR_BYTES];
    ddstore__random(d.token, 16);
    ddstore__random(d.owner, 16);
    ddstore__descriptor_encode(&d, wire);
    assert_true(ddstore__descriptor_decode(wire, DDSTORE__DESCRIPTOR_BYTES, &back));
    ddstore__descriptor_encode(&back, again);
    assert_memory_equal(wire, again, sizeof(again));
    assert_true(back.id == d.id && back.bytes == d.bytes && back.fd == d.fd);
    assert_memory_equal(back.owner, d.owner, 16);
    for (size_t n = 0; n <= sizeof(wire); n++)
        assert_int_equal(ddstore__descriptor_decode(wire, n, &back),
                         n == DDSTORE__DESCRIPTOR_BYTES);
    for (int i = 0; i < 4; i++) {
        wire[i] ^= 1;
        assert_false(
            ddstore__descriptor_decode(wire, DDSTORE__DESCRIPTOR_BYTES, &back));
        wire[i] ^= 1;
    }
    d.bytes = 1ull << 62; /* lengths that would overflow when a head is added */
    ddstore__descriptor_encode(&d, wire);
    assert_false(ddstore__descriptor_decode(wire, DDSTORE__DESCRIPTOR_BYTES, &back));
}

static void frames_come_back(void **state)
{
    (void)state;
    uint8_t wire[DDSTORE__FRAME_BYTES];
    for (int type = 0; type < 256; type++) {
        ddstore__frame f = {.type = (uint8_t)type,
                            .status = 0x8001,
                            .count = 0x80000001u,
                            .segment = 0x8000000000000001u,
                            .bytes = 0x8000000000000002u},
                       back;
        ddstore__frame_encode(&f, wire);
        bool good = type >= DDSTORE__HELLO && type <= DDSTORE__CLOSING;
        assert_int_equal(ddstore__frame_decode(wire, &back), good);
        if (good)
            assert_true(back.type == f.type && back.status == f.status &&
                        back.count == f.count && back.segment == f.segment &&
                        back.bytes == f.bytes);
    }
}

static void frames_of_others_are_refused(void **state)
{
    (void)state;
    uint8_t wire[DDSTORE__FRAME_BYTES];
    ddstore__frame f = {.type = DDSTORE__PING}, back;
    ddstore__frame_encode(&f, wire);
    for (int i = 0; i < 4; i++)
        for (int bit = 0; bit < 8; bit++) {
            wire[i] ^= (uint8_t)(1 << bit);
            assert_false(ddstore__frame_decode(wire, &back));
            wire[i] ^= (uint8_t)(1 << bit);
        }
    assert_false(ddstore__frame_decode(
        (const uint8_t *)"GET / HTTP/1.1\r\nHost: a.example\r\n", &back));
    assert_false(ddstore__frame_decode((uint8_t[32]){0}, &back));
}

static int64_t body(uint8_t type, uint32_t count, uint64_t bytes)
{
    return ddstore__request_body(
        &(ddstore__frame){.type = type, .count = count, .bytes = bytes});
}

static void bodies_are_bounded_before_anything_is_allocated(void **state)
{
    (void)state;
    assert_int_equal(body(DDSTORE__HELLO, 0, 64), 64);
    assert_int_equal(body(DDSTORE__HELLO, 0, 63), -1);
    assert_int_equal(body(DDSTORE__HELLO, 0, UINT64_MAX), -1);
    assert_int_equal(body(DDSTORE__PROVE, 0, 16), 16);
    assert_int_equal(body(DDSTORE__PROVE, 0, 0), -1);
    assert_int_equal(body(DDSTORE__READ, 0, 0), -1);
    assert_int_equal(body(DDSTORE__READ, 1, UINT64_MAX), 16);
    assert_int_equal(body(DDSTORE__READ, DDSTORE__RUNS_MAX, 0), 16 * 65536);
    assert_int_equal(body(DDSTORE__READ, DDSTORE__RUNS_MAX + 1, 0), -1);
    assert_int_equal(body(DDSTORE__READ, UINT32_MAX, 0), -1);
    assert_int_equal(body(DDSTORE__RECORD, 0, 0), -1);
    assert_int_equal(body(DDSTORE__RECORD, 0, 1024), 1024);
    assert_int_equal(body(DDSTORE__RECORD, 0, 1025), -1);
    assert_int_equal(body(DDSTORE__RECORD, 0, 1ull << 63), -1);
    assert_int_equal(body(DDSTORE__PING, UINT32_MAX, 0), 0);
    static const uint8_t answers[] = {
        DDSTORE__WELCOME, DDSTORE__DATA, DDSTORE__REFUSED, DDSTORE__CLOSING, 0, 255};
    for (size_t i = 0; i < sizeof(answers); i++)
        assert_int_equal(body(answers[i], 1, 16), -1);
}

static void cursors_stop_at_the_end(void **state)
{
    (void)state;
    const uint8_t in[7] = {1, 0, 2, 0, 0, 0, 9};
    ddstore__cursor c = {.at = in, .end = in + sizeof(in)};
    assert_int_equal(ddstore__take16(&c), 1);
    assert_int_equal(ddstore__take32(&c), 2);
    assert_false(c.bad);
    assert_int_equal(ddstore__take32(&c), 0);
    assert_true(c.bad);
    assert_null(ddstore__take(&c, 0)); /* bad for good */
    uint8_t out[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    ddstore__take_bytes(&c, out, 8);
    assert_memory_equal(out, (uint8_t[8]){0}, 8);
    c = (ddstore__cursor){.at = in, .end = in + sizeof(in)};
    assert_null(ddstore__take(&c, SIZE_MAX));
    c = (ddstore__cursor){.at = in, .end = in};
    assert_non_null(ddstore__take(&c, 0));
    assert_true(ddstore__take64(&c) == 0 && c.bad);
}

static void buffers_grow_and_fail_for_good(void **state)
{
    (void)state;
    ddstore__buffer b = {0};
    for (uint32_t i = 0; i < 10000; i++)
        ddstore__add32(&b, i);
    ddstore__add_bytes(&b, NULL, 0);
    assert_false(b.failed);
    assert_int_equal(b.bytes, 40000);
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(ddstore__get32(b.data + 4 * (size_t)i), i);
    b.failed = true;
    ddstore__add64(&b, 1);
    assert_null(ddstore__extend(&b, 1));
    assert_int_equal(b.bytes, 40000);
    free(b.data);
}

static void proofs_depend_on_everything(void **state)
{
    (void)state;
    uint8_t secret[16], hello[64], random[16], first[16], other[16];
    ddstore__random(secret, 16);
    ddstore__random(hello, 64);
    ddstore__random(random, 16);
    ddstore__proof(secret, 'S', hello, random, first);
    ddstore__proof(secret, 'S', hello, random, other);
    assert_memory_equal(first, other, 16);
    ddstore__proof(secret, 'C', hello, random,
                   other); /* one end's is not the other's */
    assert_memory_not_equal(first, other, 16);
    for (int i = 0; i < 96; i++) {
        uint8_t *at = i < 16 ? &secret[i] : i < 80 ? &hello[i - 16] : &random[i - 80];
        *at ^= 1;
        ddstore__proof(secret, 'S', hello, random, other);
        assert_memory_not_equal(first, other, 16);
        *at ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(contacts_come_back),
        TEST(contacts_of_other_lengths_are_refused),
        TEST(damaged_contacts_are_refused_or_safe),
        TEST(descriptors_come_back),
        TEST(frames_come_back),
        TEST(frames_of_others_are_refused),
        TEST(bodies_are_bounded_before_anything_is_allocated),
        TEST(cursors_stop_at_the_end),
        TEST(buffers_grow_and_fail_for_good),
        TEST(proofs_depend_on_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

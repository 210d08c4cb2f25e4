/* Randomness and hashes: published vectors, so that two builds always agree. */
#include "support.h"

/* SipHash-2-4 with 128 bits of output: key 00 .. 0f, message i the bytes 00 .. i-1 (the
 * authors' published test vectors). */
static const char *const sip[64] = {
    "a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4", "9c70b60c5267a94e5f33b6b02985ed51",
    "f88164c12d9c8faf7d0f6e7c7bcd5579", "1368875980776f8854527a07690e9627",
    "14eeca338b208613485ea0308fd7a15e", "a1f1ebbed8dbc153c0b84aa61ff08239",
    "3b62a9ba6258f5610f83e264f31497b4", "264499060ad9baabc47f8b02bb6d71ed",
    "00110dc378146956c95447d3f3d0fbba", "0151c568386b6677a2b4dc6f81e5dc18",
    "d626b266905ef35882634df68532c125", "9869e247e9c08b10d029934fc4b952f7",
    "31fcefac66d7de9c7ec7485fe4494902", "5493e99933b0a8117e08ec0f97cfc3d9",
    "6ee2a4ca67b054bbfd3315bf85230577", "473d06e8738db89854c066c47ae47740",
    "a426e5e423bf4885294da481feaef723", "78017731cf65fab074d5208952512eb1",
    "9e25fc833f2290733e9344a5e83839eb", "568e495abe525a218a2214cd3e071d12",
    "4a29b54552d16b9a469c10528eff0aae", "c9d184ddd5a9f5e0cf8ce29a9abf691c",
    "2db479ae78bd50d8882a8a178a6132ad", "8ece5f042d5e447b5051b9eacb8d8f6f",
    "9c0b53b4b3c307e87eaee08678141f66", "abf248af69a6eae4bfd3eb2f129eeb94",
    "0664da1668574b88b935f3027358aef4", "aa4b9dc4bf337de90cd4fd3c467c6ab7",
    "ea5c7f471faf6bde2b1ad7d4686d2287", "2939b0183223fafc1723de4f52c43d35",
    "7c3956ca5eeafc3e363e9d556546eb68", "77c6077146f01c32b6b69d5f4ea9ffcf",
    "37a6986cb8847edf0925f0f1309b54de", "a705f0e69da9a8f907241a2e923c8cc8",
    "3dc47d1f29c448461e9e76ed904f6711", "0d62bf01e6fc0e1a0d3c4751c5d3692b",
    "8c03468bca7c669ee4fd5e084bbee7b5", "528a5bb93baf2c9c4473cce5d0d22bd9",
    "df6a301e95c95dad97ae0cc8c6913bd8", "801189902c857f39e73591285e70b6db",
    "e617346ac9c231bb3650ae34ccca0c5b", "27d93437efb721aa401821dcec5adf89",
    "89237d9ded9c5e78d8b1c9b166cc7342", "4a6d8091bf5e7d651189fa94a250b14c",
    "0e33f96055e7ae893ffc0e3dcf492902", "e61c432b720b19d18ec8d84bdc63151b",
    "f7e5aef549f782cf379055a608269b16", "438d030fd0b7a54fa837f2ad201a6403",
    "a590d3ee4fbf04e3247e0d27f286423f", "5fe2c1a172fe93c4b15cd37caef9f538",
    "2c97325cbd06b36eb2133dd08b3a017c", "92c814227a6bca949ff0659f002ad39e",
    "dce850110bd8328cfbd50841d6911d87", "67f14984c7da791248e32bb5922583da",
    "1938f2cf72d54ee97e94166fa91d2a36", "74481e9646ed49fe0f6224301604698e",
    "57fca5de98a9d6d8006438d0583d8a1d", "9fecde1cefdc1cbed4763674d9575359",
    "e3040c00eb28f15366ca73cbd872e740", "7697009a6a831dfecca91c5993670f7a",
    "5853542321f567a005d547a4f04759bd", "5150d1772f50834a503e069a973fbd7c",
};

static void siphash_gives_the_published_vectors(void **state)
{
    (void)state;
    uint8_t key[16], message[64], out[16];
    char text[33];
    for (int i = 0; i < 64; i++)
        message[i] = (uint8_t)i;
    memcpy(key, message, 16);
    for (size_t i = 0; i < 64; i++) {
        ddstore__siphash128(key, message, i, out);
        ddstore__hex16(out, text);
        assert_string_equal(text, sip[i]);
    }
}

static void siphash_takes_unaligned_messages(void **state)
{
    (void)state;
    uint8_t key[17], message[80], out[16];
    char text[33];
    for (int i = 0; i < 16; i++)
        key[i + 1] = (uint8_t)i;
    for (size_t shift = 0; shift < 8; shift++)
        for (size_t n = 0; n < 64; n++) {
            for (size_t i = 0; i < n; i++)
                message[shift + i] = (uint8_t)i;
            ddstore__siphash128(key + 1, message + shift, n, out);
            ddstore__hex16(out, text);
            assert_string_equal(text, sip[n]);
        }
}

static void siphash_depends_on_every_bit_of_the_key(void **state)
{
    (void)state;
    uint8_t key[16] = {0}, first[16], other[16];
    ddstore__siphash128(key, "x", 1, first);
    for (int bit = 0; bit < 128; bit++) {
        key[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ddstore__siphash128(key, "x", 1, other);
        assert_false(ddstore__same16(first, other));
        key[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void checksums_never_change(void **state)
{
    (void)state;
    uint8_t out[16];
    char text[33];
    assert_true(ddstore__hash64("", 0) == 0xef46db3751d8e999u);
    assert_true(ddstore__hash64("abc", 3) == 0x44bc2cf5ad770999u);
    ddstore__hash128("", 0, out);
    ddstore__hex16(out, text);
    assert_string_equal(text, "7f498d4624c30160d8984701d306aa99"); /* low word first */
}

static void comparison_sees_every_byte(void **state)
{
    (void)state;
    uint8_t a[16] = {1, 2, 3}, b[16] = {1, 2, 3};
    assert_true(ddstore__same16(a, b));
    for (int i = 0; i < 16; i++) {
        b[i] ^= 0x80;
        assert_false(ddstore__same16(a, b));
        b[i] ^= 0x80;
    }
}

static void randomness_differs(void **state)
{
    (void)state;
    uint8_t a[300] = {0}, b[300] = {0};
    ddstore__random(a, sizeof(a));
    ddstore__random(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_memory_not_equal(a + 284, (uint8_t[16]){0}, 16); /* filled to its end */
    ddstore__random(a, 0);
    assert_true(ddstore__random_u64() != ddstore__random_u64());
}

static void words_are_little_endian(void **state)
{
    (void)state;
    uint8_t at[9];
    ddstore__put16(at + 1, 0x0102);
    assert_memory_equal(at + 1, "\x02\x01", 2);
    assert_int_equal(ddstore__get16(at + 1), 0x0102);
    ddstore__put32(at + 1, 0xfffefdfcu);
    assert_memory_equal(at + 1, "\xfc\xfd\xfe\xff", 4);
    assert_true(ddstore__get32(at + 1) == 0xfffefdfcu);
    ddstore__put64(at + 1, 0x8000000000000001u);
    assert_memory_equal(at + 1, "\x01\0\0\0\0\0\0\x80", 8);
    assert_true(ddstore__get64(at + 1) == 0x8000000000000001u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(siphash_gives_the_published_vectors),
        TEST(siphash_takes_unaligned_messages),
        TEST(siphash_depends_on_every_bit_of_the_key),
        TEST(checksums_never_change),
        TEST(comparison_sees_every_byte),
        TEST(randomness_differs),
        TEST(words_are_little_endian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

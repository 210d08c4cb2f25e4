/* Base64: the vectors of RFC 4648 without padding, every length, and what is no text.
 */
#include "support.h"

#include "rendezvous/base64.h"

static void known_texts(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""},
        {"f", "Zg"},
        {"fo", "Zm8"},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg"},
        {"fooba", "Zm9vYmE"},
        {"foobar", "Zm9vYmFy"},
    };
    for (size_t i = 0; i < DDSTORE__COUNT(pairs); i++) {
        char text[16];
        uint8_t bytes[8];
        size_t n = strlen(pairs[i][0]);
        ddstore__base64_encode((const uint8_t *)pairs[i][0], n, text);
        assert_string_equal(text, pairs[i][1]);
        assert_int_equal(DDSTORE__BASE64_CHARS(n), strlen(text));
        assert_int_equal(ddstore__base64_decode(text, strlen(text), bytes, 8), n);
        assert_memory_equal(bytes, pairs[i][0], n);
    }
}

static void all_bytes_come_back(void **state)
{
    (void)state;
    uint8_t in[256], out[256];
    char text[DDSTORE__BASE64_CHARS(256) + 1];
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (uint8_t)(255 - i);
    for (size_t n = 0; n <= sizeof(in); n++) {
        ddstore__base64_encode(in, n, text);
        assert_int_equal(strlen(text), DDSTORE__BASE64_CHARS(n));
        assert_int_equal(strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                                      "uvwxyz0123456789+/"),
                         strlen(text));
        assert_int_equal(ddstore__base64_decode(text, strlen(text), out, n), n);
        assert_memory_equal(in, out, n);
    }
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    uint8_t out[8];
    static const char *const bad[] = {"A",   "AAAAA", "Zg==", "Zm9v\n", "Zh",
                                      "Zm9", " Zm9v", "Zm9-", "Z\xff",  "AAAAAAAAAAAA"};
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++)
        assert_int_equal(ddstore__base64_decode(bad[i], strlen(bad[i]), out, 8), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_texts),
        cmocka_unit_test(all_bytes_come_back),
        cmocka_unit_test(other_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

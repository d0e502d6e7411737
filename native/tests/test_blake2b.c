/* Compares BLAKE2b with expected hashes from three sources:
 * - RFC 7693, appendix A
 * - the keyed test vectors of BLAKE2's authors: the key is the bytes 00 01 .. 3f, and a message is the bytes 00 01 ..
 * - CPython's hashlib, for messages with about the size of a block. The test adds these messages in pieces of every
 *   size. */
#include "server/blake2b.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

enum { LONGEST = 1000 };

static uint8_t key[64], message[LONGEST];

/* Returns the hash of `length` bytes in hex. Adds the bytes in pieces of the given size. */
static const char *hex_of(const uint8_t *data, size_t length, size_t out_length, size_t key_length, size_t piece) {
    static char hex[2 * BLAKE2B_MAX_OUT + 1];
    uint8_t out[BLAKE2B_MAX_OUT];
    Blake2b hash;
    blake2b_begin(&hash, out_length, key, key_length);
    for (size_t at = 0; at < length; at += piece)
        blake2b_add(&hash, data + at, length - at < piece ? length - at : piece);
    blake2b_end(&hash, out);
    for (size_t i = 0; i < out_length; i++) snprintf(hex + 2 * i, 3, "%02x", out[i]);
    return hex;
}

typedef struct Vector {
    size_t length;
    const char *plain, *keyed_32, *keyed_64;
} Vector;

/* Byte i of a message is i % 251. keyed_32 has a key of 32 bytes and an output of 32 bytes. */
/* clang-format off */
static const Vector VECTORS[] = {
    {0,
     "786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419d25e1031afee585313896444934eb04b903a685b1448b755d56f701afe9be2ce",
     "4e51e7a913fc80137da52880fecca175bf81e117d5c68126dc2774033517ea0d",
     "10ebb67700b1868efb4417987acf4690ae9d972fb7a590c2f02871799aaa4786b5e996e8f0f4eb981fc214b005f42d2ff4233499391653df7aefcbc13fc51568"},
    {1,
     "2fa3f686df876995167e7c2e5d74c4c7b6e48f8068fe0e44208344d480f7904c36963e44115fe3eb2a3ac8694c28bcb4f5a0f3276f2e79487d8219057a506e4b",
     "41ff93a4eaeebd3b78a93438a6f62a92ab5959c859e682b72c7def406197ca4d",
     "961f6dd1e4dd30f63901690c512e78e4b45e4742ed197c3c5e45c549fd25f2e4187b0bc9fe30492b16b0d0bc4ef9b0f34c7003fac09a5ef1532e69430234cebd"},
    {128,
     "2319e3789c47e2daa5fe807f61bec2a1a6537fa03f19ff32e87eecbfd64b7e0e8ccff439ac333b040f19b0c4ddd11a61e24ac1fe0f10a039806c5dcc0da3d115",
     "138893f1631ef3165629515d6ed800da3771b7926dced294205c7507351deebc",
     "72065ee4dd91c2d8509fa1fc28a37c7fc9fa7d5b3f8ad3d0d7a25626b57b1b44788d4caf806290425f9890a3a2a35a905ab4b37acfd0da6e4517b2525c9651e4"},
    {129,
     "f59711d44a031d5f97a9413c065d1e614c417ede998590325f49bad2fd444d3e4418be19aec4e11449ac1a57207898bc57d76a1bcf3566292c20c683a5c4648f",
     "ca60f75cbb714330c046d8f28b4ed351a3ee81776bb02a96abb646fe573e3d5c",
     "64475dfe7600d7171bea0b394e27c9b00d8e74dd1e416a79473682ad3dfdbb706631558055cfc8a40e07bd015a4540dcdea15883cbbf31412df1de1cd4152b91"},
    {256,
     "93463ac058b6163eb43be3f5bb32b28541498f4e3366f1effe253ad44e1e076e41c3616046027c82a7124f8f4746668ad10b12e8e25a95ac8f3151df01cd5a93",
     "da3bcd809850732f09afb9c749da4fc019f47d0ea35a28282f482ef5ffd91378",
     "38efcfc158f8057f5365285db9184c77ddf4d53090fd89ef261815370fd994a1b23b3e3336d7ff97823271e7e50042576ce14feadab1e8357346ffa335a3e97e"},
    {1000,
     "c11e1c0340bd7e5a1b275f1230c962fad215ecb1391486e74e31b960a2f2996381a5fad092da06841d5f26e38f6ecfeaf441acbcd1c2de61aef121e7927175f5",
     "bf9c0d3a2590251349ad634ad07f03958d0be63d5f9533daf62752de734b2c76",
     "715377e0611515b904d259ce52fc8e5d2c50468b1680b2984786b6949cc571f453d28cfb6969cb523ec84e06bf2a4465f3f37511db7792228d038942935750c1"},
};
/* clang-format on */

static void test_vectors(void) {
    CHECK(!strcmp(hex_of((const uint8_t *)"abc", 3, 64, 0, 3),
                  "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
                  "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"));
    for (size_t i = 0; i < sizeof VECTORS / sizeof *VECTORS; i++) {
        const Vector *vector = &VECTORS[i];
        for (size_t piece = 1; piece <= 300; piece += piece < 10 ? 1 : 59) {
            CHECK(!strcmp(hex_of(message, vector->length, 64, 0, piece), vector->plain));
            CHECK(!strcmp(hex_of(message, vector->length, 32, 32, piece), vector->keyed_32));
            CHECK(!strcmp(hex_of(message, vector->length, 64, 64, piece), vector->keyed_64));
        }
    }
}

static void test_equal(void) {
    uint8_t a[32] = {1, 2, 3}, b[32] = {1, 2, 3};
    CHECK(blake2b_equal(a, b, sizeof a));
    b[31] = 1;
    CHECK(!blake2b_equal(a, b, sizeof a));
    CHECK(blake2b_equal(a, b, 31));
}

int main(void) {
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof message; i++) message[i] = (uint8_t)(i % 251);
    test_vectors();
    test_equal();
    return 0;
}

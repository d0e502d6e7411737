/* BLAKE2b as in RFC 7693: twelve rounds over sixteen 64-bit words, for each block of 128 bytes. A key is the first
 * block, padded with zeros. tests/test_blake2b.c compares the results with the test vectors of the RFC and of the
 * authors. */
#include "server/blake2b.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 128, ROUNDS = 12 };

static const uint64_t INITIAL[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

/* Rounds 10 and 11 repeat rounds 0 and 1. */
static const uint8_t ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t word_at(const uint8_t *bytes) {
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--) word = word << 8 | bytes[i];
    return word;
}

static uint64_t rotated(uint64_t word, int right) { return word >> right | word << (64 - right); }

static void mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y) {
    *a += *b + x;
    *d = rotated(*d ^ *a, 32);
    *c += *d;
    *b = rotated(*b ^ *c, 24);
    *a += *b + y;
    *d = rotated(*d ^ *a, 16);
    *c += *d;
    *b = rotated(*b ^ *c, 63);
}

static void compress(Blake2b *hash, const uint8_t *block, int last) {
    uint64_t v[16], words[16];
    for (int i = 0; i < 16; i++) words[i] = word_at(block + 8 * i);
    memcpy(v, hash->state, sizeof hash->state);
    memcpy(v + 8, INITIAL, sizeof INITIAL);
    v[12] ^= hash->counter[0];
    v[13] ^= hash->counter[1];
    if (last) v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *order = ORDER[round % 10];
        for (int i = 0; i < 4; i++)
            mix(&v[i], &v[i + 4], &v[i + 8], &v[i + 12], words[order[2 * i]], words[order[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(&v[i], &v[4 + (i + 1) % 4], &v[8 + (i + 2) % 4], &v[12 + (i + 3) % 4], words[order[8 + 2 * i]],
                words[order[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) hash->state[i] ^= v[i] ^ v[i + 8];
}

static void count(Blake2b *hash, uint64_t bytes) {
    hash->counter[0] += bytes;
    hash->counter[1] += hash->counter[0] < bytes;
}

void blake2b_begin(Blake2b *hash, size_t out_length, const void *key, size_t key_length) {
    *hash = (Blake2b){.out_length = out_length};
    memcpy(hash->state, INITIAL, sizeof INITIAL);
    hash->state[0] ^= 0x01010000 ^ (uint64_t)key_length << 8 ^ (uint64_t)out_length;
    if (!key_length) return;
    memcpy(hash->block, key, key_length);
    hash->filled = BLOCK;
}

/* The compression of the last block differs from that of all other blocks. So a full block stays in the buffer until
 * more bytes follow. */
void blake2b_add(Blake2b *hash, const void *data, size_t length) {
    const uint8_t *at = data;
    while (length) {
        if (hash->filled == BLOCK) {
            count(hash, BLOCK);
            compress(hash, hash->block, 0);
            hash->filled = 0;
        }
        size_t room = BLOCK - hash->filled, part = length < room ? length : room;
        memcpy(hash->block + hash->filled, at, part);
        hash->filled += part;
        at += part;
        length -= part;
    }
}

void blake2b_end(Blake2b *hash, uint8_t *out) {
    count(hash, hash->filled);
    memset(hash->block + hash->filled, 0, BLOCK - hash->filled);
    compress(hash, hash->block, 1);
    for (size_t i = 0; i < hash->out_length; i++) out[i] = (uint8_t)(hash->state[i / 8] >> 8 * (i % 8));
    memset(hash, 0, sizeof *hash);
}

void hex_text(char *text, const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

int blake2b_equal(const uint8_t *a, const uint8_t *b, size_t length) {
    uint8_t differs = 0;
    for (size_t i = 0; i < length; i++) differs |= a[i] ^ b[i];
    return !differs;
}

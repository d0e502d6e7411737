/* The hash function BLAKE2b (RFC 7693). With a key, it is a message authentication code. This part does not depend on
 * the server. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { BLAKE2B_MAX_KEY = 64, BLAKE2B_MAX_OUT = 64 };

typedef struct Blake2b {
    uint64_t state[8], counter[2];
    uint8_t block[128];
    size_t filled, out_length;
} Blake2b;

/* Starts a hash. `out_length` is 1 to BLAKE2B_MAX_OUT bytes. `key_length` is 0 to BLAKE2B_MAX_KEY bytes. */
void blake2b_begin(Blake2b *hash, size_t out_length, const void *key, size_t key_length);
void blake2b_add(Blake2b *hash, const void *data, size_t length);

/* Writes `out_length` bytes and clears the state. */
void blake2b_end(Blake2b *hash, uint8_t *out);

/* Writes `length` bytes as hexadecimal text: two digits for each byte, and a NUL at the end. */
void hex_text(char *text, const uint8_t *bytes, size_t length);

/* 1: the first `length` bytes are equal. The running time depends only on `length`. */
int blake2b_equal(const uint8_t *a, const uint8_t *b, size_t length);

/* Memory that the index counts, arrays in chunks, the hash function, and varints. A varint is a number of variable
 * length, with 7 bits in each byte, the lowest bits first. */
#pragma once

#include "index/structure.h"

void *memory_alloc(Index *index, size_t bytes);
void *memory_zeroed(Index *index, size_t bytes);
/* Frees an allocation. `bytes` is the size of the allocation. `pointer` may be NULL. */
void memory_free(Index *index, void *pointer, size_t bytes);
/* Copies an allocation of `bytes` bytes to a new allocation of `wanted` bytes, and frees the old allocation. */
void *memory_resize(Index *index, void *pointer, size_t bytes, size_t wanted);

/* Adds an item with undefined bytes and returns its number. NO_ITEM: there are 2^32 - 1 items already. */
uint32_t chunks_add(Index *index, Chunks *chunks);
void chunks_free(Index *index, Chunks *chunks);

/* Returns the SipHash-1-3 of the bytes. */
uint64_t hash_bytes(const uint64_t key[2], const void *bytes, size_t length);

static inline uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ULL;
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ULL;
    return value ^ (value >> 32);
}

static inline unsigned varint_bytes(uint64_t value) {
    unsigned bytes = 1;
    for (; value >= 0x80; value >>= 7) bytes++;
    return bytes;
}

static inline uint8_t *varint_put(uint8_t *at, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

/* Reads a varint and returns its end. Does not check the bytes, so varint_put must have written them. */
static inline const uint8_t *varint_get(const uint8_t *at, uint64_t *value) {
    uint64_t result = *at & 0x7f;
    for (unsigned shift = 7; *at++ & 0x80; shift += 7) result |= (uint64_t)(*at & 0x7f) << shift;
    *value = result;
    return at;
}

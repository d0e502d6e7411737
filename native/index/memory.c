/* Counted memory, arrays in chunks, and the hash function. */
#include "index/memory.h"

void *memory_alloc(Index *index, size_t bytes) {
    index->memory += bytes;
    return index->allocator.alloc(bytes);
}

void *memory_zeroed(Index *index, size_t bytes) {
    void *pointer = memory_alloc(index, bytes);
    memset(pointer, 0, bytes);
    return pointer;
}

void memory_free(Index *index, void *pointer, size_t bytes) {
    if (!pointer) return;
    index->memory -= bytes;
    index->allocator.free(pointer);
}

void *memory_resize(Index *index, void *pointer, size_t bytes, size_t wanted) {
    void *result = memory_alloc(index, wanted);
    if (bytes) memcpy(result, pointer, bytes < wanted ? bytes : wanted);
    memory_free(index, pointer, bytes);
    return result;
}

enum { FIRST_ITEMS = 16 };

uint32_t chunks_add(Index *index, Chunks *chunks) {
    uint32_t item = chunks->items;
    if (item == NO_ITEM) return NO_ITEM;
    if (item < CHUNK_ITEMS) {
        if (item == chunks->first_capacity) {
            uint32_t capacity = item ? item * 2 : FIRST_ITEMS;
            if (!chunks->capacity) {
                chunks->capacity = 1;
                chunks->chunks = memory_zeroed(index, sizeof *chunks->chunks);
            }
            chunks->chunks[0] = memory_resize(index, chunks->chunks[0], (size_t)item * chunks->item_bytes,
                                              (size_t)capacity * chunks->item_bytes);
            chunks->first_capacity = capacity;
        }
    } else if (item % CHUNK_ITEMS == 0) {
        uint32_t chunk = item / CHUNK_ITEMS;
        if (chunk == chunks->capacity) {
            chunks->chunks = memory_resize(index, chunks->chunks, chunk * sizeof *chunks->chunks,
                                           chunk * 2 * sizeof *chunks->chunks);
            chunks->capacity = chunk * 2;
        }
        chunks->chunks[chunk] = memory_alloc(index, (size_t)CHUNK_ITEMS * chunks->item_bytes);
    }
    chunks->items++;
    return item;
}

void chunks_free(Index *index, Chunks *chunks) {
    for (uint32_t first = 0; first < chunks->items; first += CHUNK_ITEMS)
        memory_free(index, chunks->chunks[first / CHUNK_ITEMS],
                    (size_t)(first ? CHUNK_ITEMS : chunks->first_capacity) * chunks->item_bytes);
    memory_free(index, chunks->chunks, chunks->capacity * sizeof *chunks->chunks);
    chunks->chunks = NULL;
    chunks->capacity = chunks->items = chunks->first_capacity = 0;
}

static inline uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

uint64_t hash_bytes(const uint64_t key[2], const void *bytes, size_t length) {
    const uint8_t *at = bytes;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL, key[0] ^ 0x6c7967656e657261ULL,
                     key[1] ^ 0x7465646279746573ULL};
    uint64_t word, last = (uint64_t)length << 56;
    for (size_t left = length; left >= 8; left -= 8, at += 8) {
        memcpy(&word, at, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < length % 8; i++) last |= (uint64_t)at[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    sip_round(v), sip_round(v), sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Packed blocks of up to 128 postings.
 *
 * A block can be decoded without other data. Its bytes are, in this order:
 * - the width: how many bits each difference has (1 byte)
 * - the id of the first posting (6 bytes), and a zero byte
 * - for each posting the difference from the id before (0 for the first posting)
 * - for each posting the code (1 byte)
 * The differences are in four interleaved columns: difference i is item i / 4 of column i % 4. So the decoder can shift
 * and mask four differences at once. */
#include "index/blocks.h"

#include "index/memory.h"

typedef uint32_t Lanes __attribute__((vector_size(16)));

enum { HEADER = 8 };

static size_t packed_bytes(unsigned bits, unsigned count) {
    return ((size_t)(count + 3) / 4 * bits + 31) / 32 * sizeof(Lanes);
}

static size_t block_bytes(unsigned bits, unsigned count) { return HEADER + packed_bytes(bits, count) + count; }

static unsigned width(uint32_t value) { return value ? 32 - (unsigned)__builtin_clz(value) : 0; }

static void pack(uint8_t *out, const uint32_t *values, unsigned count, unsigned bits) {
    Lanes word = {0};
    unsigned used = 0;
    if (!bits) return;
    for (unsigned row = 0; row * 4 < count; row++) {
        Lanes value;
        memcpy(&value, values + row * 4, sizeof value);
        word |= value << used;
        used += bits;
        if (used >= 32) {
            memcpy(out, &word, sizeof word);
            out += sizeof word;
            used -= 32;
            word = used ? value >> (bits - used) : (Lanes){0};
        }
    }
    if (used) memcpy(out, &word, sizeof word);
}

static void unpack(const uint8_t *in, uint32_t *values, unsigned count, unsigned bits) {
    const Lanes mask = (Lanes){0} + (bits == 32 ? UINT32_MAX : (UINT32_C(1) << bits) - 1);
    Lanes word;
    unsigned used = 0;
    if (!bits) {
        memset(values, 0, count * sizeof *values);
        return;
    }
    memcpy(&word, in, sizeof word);
    for (unsigned row = 0; row * 4 < count; row++) {
        Lanes value = word >> used;
        used += bits;
        if (used >= 32) {
            used -= 32;
            if (used || (row + 1) * 4 < count) {
                in += sizeof word;
                memcpy(&word, in, sizeof word);
                if (used) value |= word << (bits - used);
            }
        }
        value &= mask;
        memcpy(values + row * 4, &value, sizeof value);
    }
}

Block block_new(Index *index, const uint64_t *ids, const uint8_t *codes, unsigned count) {
    uint32_t differences[BLOCK_POSTINGS] = {0}, any = 0;
    uint8_t max = 0;
    for (unsigned i = 0; i < count; i++) {
        if (i) differences[i] = (uint32_t)(ids[i] - ids[i - 1]);
        any |= differences[i];
        if (codes[i] > max) max = codes[i];
    }
    unsigned bits = width(any);
    uint8_t *data = memory_alloc(index, block_bytes(bits, count));
    data[0] = (uint8_t)bits;
    for (unsigned i = 0; i < 6; i++) data[1 + i] = (uint8_t)(ids[0] >> (8 * i));
    data[7] = 0;
    pack(data + HEADER, differences, count, bits);
    memcpy(data + HEADER + packed_bytes(bits, count), codes, count);
    return (Block){.last = ids[count - 1], .max = max, .count_minus_1 = count - 1, .data = data};
}

void block_free(Index *index, Block *block) {
    memory_free(index, block->data, block_bytes(block->data[0], block->count_minus_1 + 1u));
    block->data = NULL;
}

void block_decode(const Block *block, Decoded *out) {
    const uint8_t *data = block->data;
    unsigned bits = data[0], count = block->count_minus_1 + 1u;
    out->base = 0;
    for (unsigned i = 0; i < 6; i++) out->base |= (uint64_t)data[1 + i] << (8 * i);
    out->count = count;
    unpack(data + HEADER, out->offsets, count, bits);
    for (unsigned i = 1; i < count; i++) out->offsets[i] += out->offsets[i - 1];
    memcpy(out->codes, data + HEADER + packed_bytes(bits, count), count);
}

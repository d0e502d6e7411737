/* Hash tables of item numbers that grow and shrink in small steps.
 *
 * This is extendible hashing: a directory of segments. Each segment is an open addressing table of 8 to SEGMENT_SLOTS
 * slots (a slot is the space for one item); only a segment of depth MAX_DEPTH may have more slots. A full segment is
 * split in two by the next bit of the hash. A split moves about 900 items, independent of the size of the table. Only
 * the directory is doubled in one step. The directory has 8 bytes for about every 600 items. A lookup compares one byte
 * of an item's hash (the tag) before the lookup reads the item's memory.
 *
 * Segments fill evenly, so in a growing table all segments split within a short time. In this time, each new item moves
 * about eight other items on average. To hash a moved item, a split must read the item's bytes, and the bytes of the
 * items are at distant addresses. So a split prefetches the bytes of several items, which makes the split three times
 * as fast. */
#include "index/table.h"

#include "index/memory.h"

enum { FIRST_SLOTS = 8, SEGMENT_SLOTS = 1024, MAX_DEPTH = 28 };

struct Segment {
    uint32_t count, slots;
    uint32_t depth;
    uint32_t pattern; /* the lowest `depth` bits of the hash */
    uint32_t items[]; /* after the items, one byte for each slot: 0 means empty */
};

static inline uint8_t *tags_of(const Segment *segment) { return (uint8_t *)(segment->items + segment->slots); }

static inline uint8_t tag_of(uint64_t hash) { return (uint8_t)(hash >> 56 ? hash >> 56 : 1); }

static inline uint32_t home_of(const Segment *segment, uint64_t hash) {
    return (uint32_t)(hash >> 28) & (segment->slots - 1);
}

static inline Segment *segment_of(const Table *table, uint64_t hash) {
    return table->directory[hash & ((UINT32_C(1) << table->depth) - 1)];
}

static size_t segment_bytes(uint32_t slots) { return sizeof(Segment) + (size_t)slots * (sizeof(uint32_t) + 1); }

static Segment *new_segment(Index *index, uint32_t slots, uint32_t depth, uint32_t pattern) {
    Segment *segment = memory_alloc(index, segment_bytes(slots));
    *segment = (Segment){.slots = slots, .depth = depth, .pattern = pattern};
    memset(tags_of(segment), 0, slots);
    return segment;
}

static void put(Segment *segment, uint64_t hash, uint32_t item) {
    uint8_t *tags = tags_of(segment);
    uint32_t slot = home_of(segment, hash);
    while (tags[slot]) slot = (slot + 1) & (segment->slots - 1);
    tags[slot] = tag_of(hash);
    segment->items[slot] = item;
    segment->count++;
}

static void point(Table *table, Segment *segment) {
    for (uint64_t i = segment->pattern; i < UINT64_C(1) << table->depth; i += UINT64_C(1) << segment->depth)
        table->directory[i] = segment;
}

enum { AHEAD = 8 };

static void fetch(const Index *index, const Table *table, const Segment *segment, uint32_t slot, bool first) {
    if (slot < segment->slots && tags_of(segment)[slot]) table->fetch(index, segment->items[slot], first);
}

/* Moves each item of a segment to `zero` or `one`, according to the bit `bit` (0 is the lowest) of its hash, and frees
 * the segment. `zero` and `one` may be the same segment. */
static void move(Index *index, const Table *table, Segment *from, Segment *zero, Segment *one, uint32_t bit) {
    const uint8_t *tags = tags_of(from);
    for (uint32_t slot = 0; slot < 2 * AHEAD; slot++) fetch(index, table, from, slot, true);
    for (uint32_t slot = 0; slot < AHEAD; slot++) fetch(index, table, from, slot, false);
    for (uint32_t slot = 0; slot < from->slots; slot++) {
        fetch(index, table, from, slot + 2 * AHEAD, true);
        fetch(index, table, from, slot + AHEAD, false);
        if (!tags[slot]) continue;
        uint64_t hash = table->hash(index, from->items[slot]);
        put(hash >> bit & 1 ? one : zero, hash, from->items[slot]);
    }
    memory_free(index, from, segment_bytes(from->slots));
}

static void resize(Index *index, Table *table, Segment *segment, uint32_t slots) {
    Segment *other = new_segment(index, slots, segment->depth, segment->pattern);
    move(index, table, segment, other, other, 0);
    point(table, other);
}

static void split(Index *index, Table *table, Segment *segment) {
    uint32_t bit = segment->depth;
    if (bit == table->depth) {
        size_t bytes = sizeof *table->directory << table->depth;
        table->directory = memory_resize(index, table->directory, bytes, bytes * 2);
        memcpy(table->directory + (UINT32_C(1) << table->depth), table->directory, bytes);
        table->depth++;
    }
    Segment *zero = new_segment(index, segment->slots, bit + 1, segment->pattern);
    Segment *one = new_segment(index, segment->slots, bit + 1, segment->pattern | UINT32_C(1) << bit);
    move(index, table, segment, zero, one, bit);
    point(table, zero);
    point(table, one);
}

void table_init(Index *index, Table *table, uint64_t (*hash)(const Index *, uint32_t),
                void (*fetch)(const Index *, uint32_t, bool)) {
    table->depth = 0;
    table->hash = hash;
    table->fetch = fetch;
    table->directory = memory_alloc(index, sizeof *table->directory);
    table->directory[0] = new_segment(index, FIRST_SLOTS, 0, 0);
}

void table_free(Index *index, Table *table) {
    uint64_t entries = UINT64_C(1) << table->depth;
    /* Goes from the end to the start. The pattern of a segment is the number of the first entry that points to the
     * segment. So the loop frees a segment only after it has read all entries that point to the segment. */
    for (uint64_t i = entries; i-- > 0;)
        if (table->directory[i]->pattern == i)
            memory_free(index, table->directory[i], segment_bytes(table->directory[i]->slots));
    memory_free(index, table->directory, entries * sizeof *table->directory);
}

uint32_t table_find(const Index *index, const Table *table, const TableKey *key, TableEqual equal) {
    const Segment *segment = segment_of(table, key->hash);
    const uint8_t *tags = tags_of(segment);
    uint8_t tag = tag_of(key->hash);
    for (uint32_t slot = home_of(segment, key->hash); tags[slot]; slot = (slot + 1) & (segment->slots - 1))
        if (tags[slot] == tag && equal(index, segment->items[slot], key)) return segment->items[slot];
    return NO_ITEM;
}

void table_insert(Index *index, Table *table, uint64_t hash, uint32_t item) {
    Segment *segment = segment_of(table, hash);
    for (; segment->count >= segment->slots / 8 * 7; segment = segment_of(table, hash)) {
        /* At MAX_DEPTH, all items of a segment may have the same hash, and a split would separate no items. So the
         * segment grows. */
        if (segment->slots < SEGMENT_SLOTS || segment->depth == MAX_DEPTH)
            resize(index, table, segment, segment->slots * 2);
        else split(index, table, segment);
    }
    put(segment, hash, item);
}

/* Makes a nearly empty segment smaller: merges it with the neighbouring segment if both have few items, or halves the
 * slots of a table with one segment. Returns the number of hashed items. */
static uint32_t shrink(Index *index, Table *table, Segment *segment) {
    uint32_t hashed = segment->count;
    if (segment->slots > FIRST_SLOTS && segment->count <= segment->slots / 8) {
        if (segment->depth) {
            uint32_t bit = segment->depth - 1;
            Segment *other = segment_of(table, segment->pattern ^ UINT32_C(1) << bit);
            if (other->depth != segment->depth || segment->count + other->count > SEGMENT_SLOTS / 8 * 3) return 0;
            hashed += other->count;
            Segment *both = new_segment(index, SEGMENT_SLOTS, bit, segment->pattern & ((UINT32_C(1) << bit) - 1));
            move(index, table, segment, both, both, 0);
            move(index, table, other, both, both, 0);
            point(table, both);
        } else {
            resize(index, table, segment, segment->slots / 2);
        }
        return hashed;
    }
    return 0;
}

uint32_t table_remove(Index *index, Table *table, uint64_t hash, uint32_t item) {
    Segment *segment = segment_of(table, hash);
    uint8_t *tags = tags_of(segment);
    uint32_t mask = segment->slots - 1, hole = home_of(segment, hash), hashed = 0;
    while (segment->items[hole] != item || !tags[hole]) hole = (hole + 1) & mask;
    /* Each following item moves into the gap, except if its home position (home_of(), the slot that its hash selects)
     * is between the gap and its current position. */
    for (uint32_t slot = (hole + 1) & mask; tags[slot]; slot = (slot + 1) & mask, hashed++) {
        uint32_t home = home_of(segment, table->hash(index, segment->items[slot]));
        if (((slot - home) & mask) < ((slot - hole) & mask)) continue;
        segment->items[hole] = segment->items[slot];
        tags[hole] = tags[slot];
        hole = slot;
    }
    tags[hole] = 0;
    segment->count--;
    return hashed + shrink(index, table, segment);
}

/* Tests of the files of the index, one by one: codes, blocks, postings with ids of every size, tables, runs. */
#include <math.h>

#include "index/blocks.h"
#include "index/codes.h"
#include "index/dictionary.h"
#include "index/postings.h"
#include "index/runs.h"
#include "index/table.h"

#include "tests/index_check.h"

static void test_codes(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    for (uint32_t length = 1; length < 3000; length++)
        for (uint32_t frequency = 1; frequency < 12; frequency++) {
            double weight = frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / 15));
            uint8_t code = code_of(frequency, length);
            CHECK(code && (weight < 0.02 ? code == 1 : fabs(code_weight[code] / weight - 1) < 0.0095));
            CHECK(code_of(frequency + 1, length) >= code && code_of(frequency, length + 1) <= code);
        }
    CHECK(code_of(UINT32_MAX, 0) == 255 && code_of(1, UINT32_MAX) == 1);
    index_free(index);
}

static void test_blocks_of_every_width(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    for (unsigned width = 0; width <= 32; width++)
        for (unsigned count = 1; count <= BLOCK_POSTINGS; count++) {
            uint64_t ids[BLOCK_POSTINGS], id = next() >> 20;
            uint8_t codes[BLOCK_POSTINGS], max = 0;
            uint64_t most = (UINT64_C(1) << width) / (width > 24 ? count : 1) + 1;
            for (unsigned i = 0; i < count; i++) {
                ids[i] = id;
                codes[i] = (uint8_t)(1 + next() % 255);
                max = codes[i] > max ? codes[i] : max;
                uint64_t step = 1 + next() % most;
                if (id + step - ids[0] <= UINT32_MAX) id += step;
                else id++;
            }
            Block block = block_new(index, ids, codes, count);
            Decoded decoded;
            block_decode(&block, &decoded);
            CHECK(decoded.count == count && block.max == max && block.last == ids[count - 1]);
            for (unsigned i = 0; i < count; i++)
                CHECK(decoded.base + decoded.offsets[i] == ids[i] && decoded.codes[i] == codes[i]);
            block_free(index, &block);
        }
    index_free(index);
}

/* Tests all forms of postings. Some differences between ids are `leap`. */
static void test_postings(uint64_t leap) {
    enum { COUNT = 1500 };
    static uint64_t ids[COUNT];
    static uint8_t codes[COUNT];
    Index *index = index_new(ALLOCATOR, KEY);
    bool is_new;
    uint32_t term = dictionary_add(index, "term", 4, &is_new);
    Entry *entry = entry_at(index, term);
    uint64_t id = 0;
    for (unsigned count = 0; count < COUNT; count++) {
        id += 1 + next() % 1000;
        if (leap && next() % 16 == 0) id += leap;
        ids[count] = id;
        codes[count] = (uint8_t)(1 + next() % 255);
        CHECK(postings_append(index, entry, id, codes[count]));
        CHECK(!postings_append(index, entry, id, 1));
        CHECK(postings_count(entry) == count + 1);
        if (count > 300 && count < COUNT - 1) continue;
        View view = postings_view(entry);
        unsigned seen = 0;
        uint8_t max = 0;
        for (uint32_t block = 0; block < view.total; block++) {
            Decoded decoded;
            view_decode(&view, block, &decoded);
            for (uint32_t i = 0; i < decoded.count; i++, seen++) {
                CHECK(decoded.base + decoded.offsets[i] == ids[seen] && decoded.codes[i] == codes[seen]);
                CHECK(codes[seen] <= view_max(&view, block));
                max = codes[seen] > max ? codes[seen] : max;
            }
            CHECK(view_last(&view, block) == ids[seen - 1]);
        }
        CHECK(seen == count + 1 && view.max == max);
    }
    /* No document has these ids: a purge in small steps removes everything. */
    index->postings = index->dead_postings = COUNT;
    uint32_t block = 0;
    int64_t budget;
    do budget = 1;
    while (!postings_purge(index, entry, &block, &budget));
    CHECK(postings_count(entry) == 0 && index->postings == 0);
    dictionary_remove(index, term);
    CHECK(dictionary_find(index, "term", 4) == NO_ITEM);
    index_free(index);
}

static void test_dictionary_grows_shrinks_and_reuses(void) {
    enum { TERMS = 30000 };
    Index *index = index_new(ALLOCATOR, KEY);
    size_t empty = index->memory, full = 0;
    for (int round = 0; round < 3; round++) {
        char text[300];
        bool is_new;
        for (uint32_t i = 0; i < TERMS; i++) {
            int length = snprintf(text, sizeof text, "%0*u", 1 + (int)(i * 7 % 40), i);
            dictionary_add(index, text, (size_t)length, &is_new);
            CHECK(is_new);
            CHECK(dictionary_add(index, text, (size_t)length, &is_new) ==
                      dictionary_find(index, text, (size_t)length) &&
                  !is_new);
        }
        CHECK(index->term_count == TERMS && index->entries.items == TERMS);
        CHECK(!full || index->memory <= full + full / 10);
        full = index->memory;
        for (uint32_t i = 0; i < TERMS; i++) {
            int length = snprintf(text, sizeof text, "%0*u", 1 + (int)(i * 7 % 40), i);
            uint32_t term = dictionary_find(index, text, (size_t)length);
            CHECK(term != NO_ITEM);
            dictionary_remove(index, term);
            CHECK(dictionary_find(index, text, (size_t)length) == NO_ITEM);
        }
    }
    CHECK(index->memory > empty && index->term_count == 0);
    index_free(index);
}

static uint64_t same_hash(const Index *index, uint32_t item) {
    (void)index, (void)item;
    return 42;
}

static void no_fetch(const Index *index, uint32_t item, bool first) { (void)index, (void)item, (void)first; }

static bool is_item(const Index *index, uint32_t item, const TableKey *key) {
    (void)index;
    return item == key->length;
}

/* If all items have the same hash, a table is slow. But the table contains all items, and stops splitting segments. */
static void test_equal_hashes(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    Table table;
    table_init(index, &table, same_hash, no_fetch);
    for (uint32_t i = 0; i < 800; i++) table_insert(index, &table, 42, i);
    for (uint32_t i = 0; i < 800; i += 2) table_remove(index, &table, 42, i);
    for (uint32_t i = 0; i < 800; i++)
        CHECK(table_find(index, &table, &(TableKey){NULL, i, 42}, is_item) == (i % 2 ? i : NO_ITEM));
    table_free(index, &table);
    index_free(index);
}

/* Compares the runs (index/runs.h) with a plain array that has the document of each id. */
static void test_runs(void) {
    enum { IDS = 6000 };
    static uint32_t owner[IDS], first_of[IDS];
    Index *index = index_new(ALLOCATOR, KEY);
    memset(owner, 0xff, sizeof owner);
    uint32_t id = 0;
    for (uint32_t document = 0; id < IDS - 20; document++) {
        uint32_t count = 1 + (uint32_t)(next() % 5);
        id += (uint32_t)(next() % 3);
        runs_append(index, id, count, document, 0);
        for (uint32_t i = 0; i < count; i++) owner[id + i] = document, first_of[id + i] = id;
        id += count;
    }
    for (int left = 2500; left >= 0; left--) {
        uint32_t at = (uint32_t)(next() % IDS);
        Place place = runs_find(index, at), from = runs_from(index, at);
        CHECK(place.document == owner[at] && (owner[at] == NO_ITEM || place.first == first_of[at]));
        uint32_t expected = at;
        while (expected < IDS && owner[expected] == NO_ITEM) expected++;
        CHECK(from.document == (expected < IDS ? owner[expected] : NO_ITEM));
        if (place.document == NO_ITEM) continue;
        runs_remove(index, at);
        for (uint32_t i = (uint32_t)place.first; i < place.end; i++) owner[i] = NO_ITEM;
    }
    index_free(index);
}

int main(void) {
    test_codes();
    test_blocks_of_every_width();
    test_postings(0);
    test_postings(UINT64_C(1) << 33);
    test_postings(UINT64_C(1) << 31);
    test_dictionary_grows_shrinks_and_reuses();
    test_equal_hashes();
    test_runs();
    return 0;
}

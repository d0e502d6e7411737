/* Terms: their bytes, their numbers, and the forms of their postings. */
#include "index/dictionary.h"

#include "index/memory.h"
#include "index/postings.h"
#include "index/table.h"

static const uint8_t *text_at(const Index *index, uint32_t place) {
    return index->texts.chunks[place / (TEXT_CHUNK / 4)] + (size_t)(place % (TEXT_CHUNK / 4)) * 4;
}

static uint32_t class_of(size_t length) { return (uint32_t)((length + 1 + 3) / 4); }

const uint8_t *dictionary_text(const Index *index, const Entry *entry, size_t *length) {
    const uint8_t *text = text_at(index, entry->text);
    *length = (size_t)text[0] + 1;
    return text + 1;
}

/* Finds space for the bytes of a term: the space of a removed term of this size class, or new space at the end of the
 * texts. Returns the position of the space, in units of 4 bytes. A size class is a number of 4-byte units. The first
 * chunk of the texts doubles its size when it is full, up to TEXT_CHUNK bytes. NO_ITEM: no space is left. */
static uint32_t take_text(Index *index, uint32_t size_class) {
    Texts *texts = &index->texts;
    uint32_t place = texts->free[size_class], bytes = size_class * 4;
    if (place) {
        memcpy(&texts->free[size_class], text_at(index, place - 1), sizeof place);
        return place - 1;
    }
    uint32_t room = texts->chunk_count > 1 ? TEXT_CHUNK : texts->first_bytes;
    if (texts->used + bytes > room && texts->chunk_count <= 1 && room < TEXT_CHUNK) {
        if (!texts->chunk_count) {
            texts->chunks = memory_zeroed(index, sizeof *texts->chunks);
            texts->capacity = texts->chunk_count = 1;
        }
        uint32_t wanted = room ? room * 2 : 512;
        texts->chunks[0] = memory_resize(index, texts->chunks[0], room, wanted);
        texts->first_bytes = room = wanted;
    }
    if (texts->used + bytes > room) {
        if (texts->chunk_count == UINT32_MAX / (TEXT_CHUNK / 4)) return NO_ITEM;
        if (texts->chunk_count == texts->capacity) {
            texts->chunks = memory_resize(index, texts->chunks, texts->capacity * sizeof *texts->chunks,
                                          texts->capacity * 2 * sizeof *texts->chunks);
            texts->capacity *= 2;
        }
        texts->chunks[texts->chunk_count++] = memory_alloc(index, TEXT_CHUNK);
        texts->used = 0;
    }
    place = (texts->chunk_count - 1) * (TEXT_CHUNK / 4) + texts->used / 4;
    texts->used += bytes;
    return place;
}

static bool equal(const Index *index, uint32_t term, const TableKey *key) {
    size_t length;
    const uint8_t *text = dictionary_text(index, entry_at(index, term), &length);
    return length == key->length && memcmp(text, key->bytes, length) == 0;
}

uint64_t dictionary_hash(const Index *index, uint32_t term) {
    size_t length;
    const uint8_t *text = dictionary_text(index, entry_at(index, term), &length);
    return hash_bytes(index->key, text, length);
}

void dictionary_fetch(const Index *index, uint32_t term, bool first) {
    const Entry *entry = entry_at(index, term);
    __builtin_prefetch(first ? (const void *)entry : text_at(index, entry->text));
}

uint32_t dictionary_find(const Index *index, const void *bytes, size_t length) {
    TableKey key = {bytes, length, hash_bytes(index->key, bytes, length)};
    return table_find(index, &index->term_table, &key, equal);
}

uint32_t dictionary_add(Index *index, const void *bytes, size_t length, bool *is_new) {
    TableKey key = {bytes, length, hash_bytes(index->key, bytes, length)};
    uint32_t term = table_find(index, &index->term_table, &key, equal);
    *is_new = term == NO_ITEM;
    if (term != NO_ITEM) return term;
    uint32_t place = take_text(index, class_of(length));
    if (place == NO_ITEM) return NO_ITEM;
    term = index->free_entry;
    if (term != NO_ITEM) index->free_entry = entry_at(index, term)->text;
    else term = chunks_add(index, &index->entries);
    if (term == NO_ITEM) return NO_ITEM;
    *entry_at(index, term) = (Entry){.text = place};
    uint8_t *text = (uint8_t *)text_at(index, place);
    text[0] = (uint8_t)(length - 1);
    memcpy(text + 1, bytes, length);
    table_insert(index, &index->term_table, key.hash, term);
    index->term_count++;
    return term;
}

/* dictionary_add() may give the number of the removed term to a new term. So no forward list may still contain the
 * number when this function is called. */
uint32_t dictionary_remove(Index *index, uint32_t term) {
    Entry *entry = entry_at(index, term);
    size_t length;
    uint8_t *text = (uint8_t *)dictionary_text(index, entry, &length) - 1;
    uint32_t hashed = 1 + table_remove(index, &index->term_table, dictionary_hash(index, term), term);
    uint32_t *free = &index->texts.free[class_of(length)];
    memcpy(text, free, sizeof *free);
    *free = entry->text + 1;
    *entry = (Entry){.text = index->free_entry, .form = FORM_FREE};
    index->free_entry = term;
    index->term_count--;
    return hashed;
}

void dictionary_free(Index *index) {
    Texts *texts = &index->texts;
    for (uint32_t term = 0; term < index->entries.items; term++) postings_free(index, entry_at(index, term));
    for (uint32_t i = 0; i < texts->chunk_count; i++)
        memory_free(index, texts->chunks[i], i ? TEXT_CHUNK : texts->first_bytes);
    memory_free(index, texts->chunks, texts->capacity * sizeof *texts->chunks);
    chunks_free(index, &index->entries);
    table_free(index, &index->term_table);
}

/* ---- Completions ---- */

static bool is_better(const IndexCompletion *a, const IndexCompletion *b) {
    if (a->frequency != b->frequency) return a->frequency > b->frequency;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);
    return order ? order < 0 : a->length < b->length;
}

size_t index_complete(const Index *index, const void *prefix, size_t length, size_t steps, IndexCompletion *completions,
                      size_t count, bool *all) {
    size_t found = 0;
    uint32_t end = index->entries.items < steps ? index->entries.items : (uint32_t)steps;
    *all = end == index->entries.items;
    for (uint32_t term = 0; term < end && count; term++) {
        const Entry *entry = entry_at(index, term);
        if (entry->form == FORM_FREE || !entry->df) continue;
        /* When `count` completions are found, most terms are rarer than these completions. The loop skips such a term
         * without reading its bytes. */
        if (found == count && entry->df < completions[found - 1].frequency) continue;
        IndexCompletion each = {.frequency = entry->df};
        each.bytes = dictionary_text(index, entry, &each.length);
        if (each.length < length || memcmp(each.bytes, prefix, length) != 0) continue;
        if (found == count && !is_better(&each, &completions[found - 1])) continue;
        size_t at = found < count ? found++ : found - 1;
        for (; at && is_better(&each, &completions[at - 1]); at--) completions[at] = completions[at - 1];
        completions[at] = each;
    }
    return found;
}

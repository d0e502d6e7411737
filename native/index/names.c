/* Counts the documents and values of each field, so that index_fields() needs no scan of the documents. The name of a
 * field is freed when no live document has the field. */
#include "index/names.h"

#include "index/fields.h"
#include "index/memory.h"
#include "index/table.h"

static FieldName *name_at(const Index *index, uint32_t number) { return chunks_at(&index->names, number); }

uint64_t field_names_hash(const Index *index, uint32_t number) {
    const uint8_t *name = name_at(index, number)->name;
    return hash_bytes(index->key, name + 1, *name);
}

void field_names_fetch(const Index *index, uint32_t number, bool first) {
    __builtin_prefetch(first ? (const void *)name_at(index, number) : name_at(index, number)->name);
}

static bool equal(const Index *index, uint32_t number, const TableKey *key) {
    const uint8_t *name = name_at(index, number)->name;
    return *name == key->length && memcmp(name + 1, key->bytes, key->length) == 0;
}

static uint32_t find(const Index *index, const TableKey *key) {
    return table_find(index, &index->name_table, key, equal);
}

/* Adds a name and returns its number. NO_ITEM: there are 2^32 - 1 names already. */
static uint32_t add(Index *index, const TableKey *key) {
    uint32_t number = index->free_name;
    if (number != NO_ITEM) index->free_name = (uint32_t)name_at(index, number)->documents;
    else number = chunks_add(index, &index->names);
    if (number == NO_ITEM) return NO_ITEM;
    FieldName *entry = name_at(index, number);
    *entry = (FieldName){.name = memory_alloc(index, 1 + key->length)};
    *entry->name = (uint8_t)key->length;
    memcpy(entry->name + 1, key->bytes, key->length);
    table_insert(index, &index->name_table, key->hash, number);
    return number;
}

static void drop(Index *index, uint32_t number, const TableKey *key) {
    FieldName *entry = name_at(index, number);
    table_remove(index, &index->name_table, key->hash, number);
    memory_free(index, entry->name, 1 + key->length);
    *entry = (FieldName){.documents = index->free_name};
    index->free_name = number;
}

static unsigned kind_of(const uint8_t *value) {
    switch (*value) {
    case 'b': return KIND_BOOLEAN;
    case 'n': return KIND_NUMBER;
    case 's': return KIND_TEXT;
    }
    return KIND_TIME;
}

void field_names_count(Index *index, const uint8_t *fields, size_t length, int sign) {
    if (!length) return;
    uint64_t one = (uint64_t)(int64_t)sign;
    const uint8_t *at = fields + 2;
    for (unsigned left = u16_at(fields); left; left--) {
        TableKey key = {at + 1, *at, hash_bytes(index->key, at + 1, *at)};
        at += 1 + *at;
        unsigned values = u16_at(at);
        at += 2;
        uint32_t number = find(index, &key);
        if (number == NO_ITEM && sign > 0) number = add(index, &key);
        FieldName ignored = {0}, *entry = number == NO_ITEM ? &ignored : name_at(index, number);
        for (; values; values--, at += value_bytes(at)) entry->values[kind_of(at)] += one;
        entry->documents += one;
        if (number != NO_ITEM && !entry->documents) drop(index, number, &key);
    }
}

void field_names_free(Index *index) {
    for (uint32_t number = 0; number < index->names.items; number++) {
        FieldName *entry = name_at(index, number);
        if (entry->name) memory_free(index, entry->name, 1 + (size_t)*entry->name);
    }
    chunks_free(index, &index->names);
    table_free(index, &index->name_table);
}

/* ---- Reading ---- */

uint64_t index_field_documents(const Index *index, const void *name, size_t length) {
    if (!length || length > UINT8_MAX) return 0;
    TableKey key = {name, length, hash_bytes(index->key, name, length)};
    uint32_t number = find(index, &key);
    return number == NO_ITEM ? 0 : name_at(index, number)->documents;
}

size_t index_fields(const Index *index, uint64_t *cursor, IndexField *fields, size_t count) {
    size_t found = 0;
    uint64_t number = *cursor;
    for (; number < index->names.items && found < count; number++) {
        const FieldName *entry = name_at(index, (uint32_t)number);
        if (!entry->name) continue;
        fields[found++] = (IndexField){.name = entry->name + 1,
                                       .length = *entry->name,
                                       .documents = entry->documents,
                                       .booleans = entry->values[KIND_BOOLEAN],
                                       .numbers = entry->values[KIND_NUMBER],
                                       .texts = entry->values[KIND_TEXT],
                                       .times = entry->values[KIND_TIME]};
    }
    *cursor = number < index->names.items ? number : 0;
    return found;
}

/* Hash tables that find the number of an item (a term, a document or a field's name) by the item's bytes. */
#pragma once

#include "index/structure.h"

typedef struct TableKey {
    const void *bytes;
    size_t length;
    uint64_t hash;
} TableKey;

typedef bool (*TableEqual)(const Index *index, uint32_t item, const TableKey *key);

void table_init(Index *index, Table *table, uint64_t (*hash)(const Index *, uint32_t),
                void (*fetch)(const Index *, uint32_t, bool));
void table_free(Index *index, Table *table);
/* Returns the item that `equal` accepts for the key. NO_ITEM: there is no such item. */
uint32_t table_find(const Index *index, const Table *table, const TableKey *key, TableEqual equal);
/* Adds an item, which must not be in the table yet. `hash` is the hash of the item. */
void table_insert(Index *index, Table *table, uint64_t hash, uint32_t item);
/* Removes an item, which must be in the table. Returns how many other items were hashed, to close the gap in its
 * segment (about 30 items in a full segment) and to shrink the table. */
uint32_t table_remove(Index *index, Table *table, uint64_t hash, uint32_t item);

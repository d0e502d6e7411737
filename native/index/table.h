/* Hash tables of item numbers. */
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
/* NO_ITEM: no item is equal. */
uint32_t table_find(const Index *index, const Table *table, const TableKey *key, TableEqual equal);
/* The item must not be in the table. */
void table_insert(Index *index, Table *table, uint64_t hash, uint32_t item);
/* The item must be in the table. Removes the item. Returns how many other items were hashed to close the gap: about 30
 * in a full segment. */
uint32_t table_remove(Index *index, Table *table, uint64_t hash, uint32_t item);

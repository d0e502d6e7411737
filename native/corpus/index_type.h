/* The data type qa-index_: a key of this type has an index as its value. An index is incomplete while QA.INDEX.LOAD has
 * not received all parts of its payload (stored_index.h). */
#pragma once

#include "corpus/stored_index.h"

/* Set *stored to the value of the key, or to NULL if the key is missing. The value is valid until the current command
 * ends. Return NULL, or an error line if the key has another type or an incomplete index.
 * - index_key_read: if the key is missing, the server sends a keymiss event.
 * - index_key_peek: no keymiss event.
 * - index_key_peek_parts: no keymiss event, and accepts an incomplete index. */
const char *index_key_read(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
const char *index_key_peek(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
const char *index_key_peek_parts(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
/* Sets the key to the value, which the key then owns, and signals `event`. */
void index_key_store(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex *stored, const char *event);

int index_type_create(RedisModuleCtx *ctx);

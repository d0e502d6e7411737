/* The data type qa-index_: indexes behind keys. */
#pragma once

#include "corpus/stored_index.h"

/* Set *stored to the value of the key, or to NULL if the key does not exist. The value is valid until the current
 * command ends. If the key is missing, index_key_peek sends no keymiss event. Both functions return NULL, or an error
 * line for other types and for an incomplete index. index_key_peek_parts also accepts an incomplete index. */
const char *index_key_read(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
const char *index_key_peek(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
const char *index_key_peek_parts(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
/* Sets the key to the value and signals `event`. */
void index_key_store(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex *stored, const char *event);

int index_type_create(RedisModuleCtx *ctx);

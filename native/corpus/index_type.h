/* The qa-index_ data type: indexes behind keys. */
#ifndef QA_INDEX_TYPE_H
#define QA_INDEX_TYPE_H

#include "corpus/stored_index.h"

/* Set *stored to the value at the key, borrowed until the current command ends, or to NULL when the key is empty.
 * index_key_peek announces no miss. Both return NULL or an error line. */
const char *index_key_read(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
const char *index_key_peek(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored);
/* An error line when an index is not complete. */
const char *index_key_check_complete(const StoredIndex *stored);
/* Puts the value there and announces `event`. */
void index_key_store(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex *stored, const char *event);

int index_type_create(RedisModuleCtx *ctx);

#endif

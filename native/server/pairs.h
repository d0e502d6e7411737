/* Replies that alternate names and values. The caller has already started the array. */
#ifndef QA_PAIRS_H
#define QA_PAIRS_H

#include <stddef.h>

#include "server/module_api.h"

/* Replies with the string, or with an empty text if it is NULL. */
void reply_optional(RedisModuleCtx *ctx, RedisModuleString *string);

void pair_number(RedisModuleCtx *ctx, const char *name, long long value);
void pair_text(RedisModuleCtx *ctx, const char *name, const char *text, size_t length);

#endif

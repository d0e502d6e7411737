/* Replies that alternate names and values. The caller has already started the array. */
#pragma once

#include <stddef.h>

#include "server/module_api.h"

/* Replies with the string, or with an empty text if it is NULL. */
void reply_optional(RedisModuleCtx *ctx, RedisModuleString *string);

void pair_number(RedisModuleCtx *ctx, const char *name, long long value);
void pair_text(RedisModuleCtx *ctx, const char *name, const char *text, size_t length);

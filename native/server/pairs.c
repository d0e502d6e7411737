/* Names are constants that end with a NUL. Texts have a length, and may contain any bytes. */
#include "server/pairs.h"

void reply_optional(RedisModuleCtx *ctx, RedisModuleString *string) {
    if (string) RedisModule_ReplyWithString(ctx, string);
    else RedisModule_ReplyWithCString(ctx, "");
}

void pair_number(RedisModuleCtx *ctx, const char *name, long long value) {
    RedisModule_ReplyWithCString(ctx, name);
    RedisModule_ReplyWithLongLong(ctx, value);
}

void pair_text(RedisModuleCtx *ctx, const char *name, const char *text, size_t length) {
    RedisModule_ReplyWithCString(ctx, name);
    RedisModule_ReplyWithStringBuffer(ctx, text, length);
}

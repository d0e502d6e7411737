/* Replies token by token, without a buffer. This is possible because aggregates in the reply API nest like aggregates
 * in RESP. */
#include "server/resp_reply.h"

#include <stdlib.h>
#include <string.h>

static void reply_line(RedisModuleCtx *ctx, const RespToken *token) {
    size_t length = token->length < 4095 ? token->length : 4095; /* longer status and error lines are cut */
    char line[4096];
    memcpy(line, token->text, length);
    line[length] = '\0';
    if (token->type == '-') RedisModule_ReplyWithError(ctx, line);
    else RedisModule_ReplyWithSimpleString(ctx, line);
}

static void reply_token(RedisModuleCtx *ctx, const RespToken *token) {
    if (token->null) {
        if (token->type == '*') RedisModule_ReplyWithNullArray(ctx);
        else RedisModule_ReplyWithNull(ctx);
        return;
    }
    switch (token->type) {
    case '+':
    case '-': reply_line(ctx, token); break;
    case ':': RedisModule_ReplyWithLongLong(ctx, token->integer); break;
    case '#': RedisModule_ReplyWithBool(ctx, (int)token->integer); break;
    case '*': RedisModule_ReplyWithArray(ctx, (long)token->integer); break;
    case '%': RedisModule_ReplyWithMap(ctx, (long)token->integer); break;
    case '~': RedisModule_ReplyWithSet(ctx, (long)token->integer); break;
    case ',':
        RedisModule_ReplyWithDouble(ctx, strtod(token->text, NULL));
        break; /* strtod stops at the CR after the number */
    default: RedisModule_ReplyWithStringBuffer(ctx, token->text, token->length); break;
    }
}

void resp_reply(RedisModuleCtx *ctx, const char *buffer, size_t length, unsigned flags) {
    RespReader reader = {buffer, buffer + length};
    RespToken token;
    while (resp_next(&reader, &token, flags) == 1) reply_token(ctx, &token);
}

/* For tests: a module whose command OTHER.CALL runs another command, as the server and not as a user. */
#include <string.h>

#include "server/module_api.h"

#define DEFINE(returns, name, arguments) static returns(*name) arguments;
DEFINE(void, SetModuleAttribs, (RedisModuleCtx *, const char *, int, int))
DEFINE(int, CreateCommand, (RedisModuleCtx *, const char *, RedisModuleCmdFunc, const char *, int, int, int))
DEFINE(RedisModuleCallReply *, Call, (RedisModuleCtx *, const char *, const char *, ...))
DEFINE(const char *, StringPtrLen, (const RedisModuleString *, size_t *))
DEFINE(int, ReplyWithCallReply, (RedisModuleCtx *, RedisModuleCallReply *))
DEFINE(void, FreeCallReply, (RedisModuleCallReply *))

static int call(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    RedisModuleCallReply *reply = Call(ctx, StringPtrLen(argv[1], NULL), "Ev", argv + 2, (size_t)argc - 2);
    ReplyWithCallReply(ctx, reply);
    FreeCallReply(reply);
    return REDISMODULE_OK;
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv, (void)argc;
    int (*get_api)(const char *, void *) = NULL;
    memcpy(&get_api, ctx, sizeof get_api);
    get_api("RedisModule_SetModuleAttribs", (void *)&SetModuleAttribs);
    get_api("RedisModule_CreateCommand", (void *)&CreateCommand);
    get_api("RedisModule_Call", (void *)&Call);
    get_api("RedisModule_StringPtrLen", (void *)&StringPtrLen);
    get_api("RedisModule_ReplyWithCallReply", (void *)&ReplyWithCallReply);
    get_api("RedisModule_FreeCallReply", (void *)&FreeCallReply);
    SetModuleAttribs(ctx, "other", 1, REDISMODULE_APIVER_1);
    return CreateCommand(ctx, "other.call", call, "", 0, 0, 0);
}

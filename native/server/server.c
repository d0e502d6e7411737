/* The module asks the server for its role and settings each time, because they may change. The only value stored at
 * load time is whether the server is Valkey. */
#include "server/server.h"

#include <string.h>

static RedisModuleCtx *detached;
static int is_valkey; /* some context flags exist only in Valkey */

static int find_valkey(RedisModuleCtx *ctx) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "INFO", "c", "server");
    RedisModuleString *info = reply ? RedisModule_CreateStringFromCallReply(reply) : NULL;
    int found = info && strstr(RedisModule_StringPtrLen(info, NULL), "valkey_version:");
    if (info) RedisModule_FreeString(ctx, info);
    if (reply) RedisModule_FreeCallReply(reply);
    return found;
}

int server_on_load(RedisModuleCtx *ctx) {
    RedisModule_SetModuleAttribs(ctx, QA_MODULE_NAME, QA_MODULE_VERSION, REDISMODULE_APIVER_1);
    detached = RedisModule_GetDetachedThreadSafeContext(ctx);
    is_valkey = find_valkey(ctx);
    RedisModule_SetModuleOptions(ctx, REDISMODULE_OPTIONS_HANDLE_IO_ERRORS |
                                          REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED |
                                          (is_valkey ? VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION : 0));
    return REDISMODULE_OK;
}

RedisModuleCtx *server_ctx(void) { return detached; }

RedisModuleString *server_setting(RedisModuleCtx *ctx, const char *name) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "CONFIG", "cc", "GET", name);
    RedisModuleString *value = NULL;
    if (reply && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ARRAY && RedisModule_CallReplyLength(reply) == 2)
        value = RedisModule_CreateStringFromCallReply(RedisModule_CallReplyArrayElement(reply, 1));
    if (reply) RedisModule_FreeCallReply(reply);
    return value ? value : RedisModule_CreateString(NULL, "", 0);
}

int server_setting_is(RedisModuleCtx *ctx, const char *name, const char *expected) {
    RedisModuleString *value = server_setting(ctx, name);
    int is = !strcmp(RedisModule_StringPtrLen(value, NULL), expected);
    RedisModule_FreeString(NULL, value);
    return is;
}

int server_is_active_primary(RedisModuleCtx *ctx) {
    int flags = RedisModule_GetContextFlags(ctx);
    return (flags & REDISMODULE_CTX_FLAGS_MASTER) && !(flags & REDISMODULE_CTX_FLAGS_LOADING);
}

int server_is_importing(RedisModuleCtx *ctx) {
    return is_valkey && (RedisModule_GetContextFlags(ctx) & VALKEYMODULE_CTX_FLAGS_SLOT_IMPORT_CLIENT);
}

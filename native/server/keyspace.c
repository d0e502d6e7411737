/* Each function closes every key that it opens. */
#include "server/keyspace.h"

#include "server/server.h"

static KeyState state_of(RedisModuleKey *key, RedisModuleType *type, void **value) {
    *value = NULL;
    if (!key || RedisModule_KeyType(key) == REDISMODULE_KEYTYPE_EMPTY) return KEY_EMPTY;
    if (RedisModule_ModuleTypeGetType(key) != type) return KEY_WRONGTYPE;
    *value = RedisModule_ModuleTypeGetValue(key);
    return KEY_FOUND;
}

static KeyState look(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value, int mode) {
    RedisModuleKey *key = RedisModule_OpenKey(ctx, name, mode);
    KeyState state = state_of(key, type, value);
    if (key) RedisModule_CloseKey(key);
    return state;
}

KeyState keyspace_read(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value) {
    return look(ctx, name, type, value, REDISMODULE_READ);
}

/* On Redis 7.0, opening a missing key only for reading sends a keymiss event. So this function also asks for write
 * access. */
KeyState keyspace_peek(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value) {
    return look(ctx, name, type, value, REDISMODULE_READ | REDISMODULE_WRITE | REDISMODULE_OPEN_KEY_NOTOUCH);
}

void keyspace_store(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void *value,
                    const char *event) {
    RedisModuleKey *key = RedisModule_OpenKey(ctx, name, REDISMODULE_READ | REDISMODULE_WRITE);
    RedisModule_UnlinkKey(key); /* the old value may be large, so a background thread of the server frees it */
    RedisModule_ModuleTypeSetValue(key, type, value);
    RedisModule_CloseKey(key);
    keyspace_changed(ctx, name, event);
}

void keyspace_changed(RedisModuleCtx *ctx, RedisModuleString *name, const char *event) {
    RedisModule_SignalModifiedKey(ctx, name);
    RedisModule_NotifyKeyspaceEvent(ctx, REDISMODULE_NOTIFY_MODULE, event, name);
}

void keyspace_delete(RedisModuleCtx *ctx, RedisModuleString *name) {
    RedisModuleKey *key = RedisModule_OpenKey(ctx, name, REDISMODULE_READ | REDISMODULE_WRITE);
    RedisModule_UnlinkKey(key);
    RedisModule_CloseKey(key);
    RedisModule_SignalModifiedKey(ctx, name);
    RedisModule_NotifyKeyspaceEvent(ctx, REDISMODULE_NOTIFY_GENERIC, "del", name);
}

/* 1: this server still serves the key. 0: the key's slot has moved, or is migrating. The module API of Redis 7.0 has no
 * function for this test, so the test calls a command with the key. The command is OBJECT, because it is the only read
 * that sends no keymiss event. */
static int is_served(RedisModuleCtx *ctx, RedisModuleString *name) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "OBJECT", "cs", "ENCODING", name);
    if (!reply) return 0;
    RedisModule_FreeCallReply(reply);
    return 1;
}

const char *keyspace_check_types(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type) {
    void *value;
    for (int i = 0; i < n; i++)
        if (keyspace_peek(ctx, names[i], type, &value) == KEY_WRONGTYPE) return REDISMODULE_ERRORMSG_WRONGTYPE;
    return NULL;
}

const char *keyspace_may_write(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type) {
    int cluster = (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_CLUSTER) != 0;
    if (!server_is_active_primary(ctx))
        return cluster ? "TRYAGAIN this shard stopped being a primary during the command"
                       : "READONLY this server stopped being a primary during the command";
    for (int i = 0; cluster && i < n; i++)
        if (!is_served(ctx, names[i])) return "TRYAGAIN the slot of the keys moved during the command";
    return keyspace_check_types(ctx, names, n, type);
}

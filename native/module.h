/* What the files of the module share: command registration and the few facts about the server they all ask for. */
#ifndef QA_MODULE_H
#define QA_MODULE_H

#include <stddef.h>

#include "server/module_api.h"

#define QA_MODULE_NAME "qa"
#define QA_MODULE_VERSION 1

/* One command. `flags` are those of RedisModule_CreateCommand ("write deny-oom", "readonly", "getkeys-api", "admin" ..).
 * `categories` are ACL category names without "@" ("write slow"), applied where the server can (Valkey, Redis 7.2+); NULL: those
 * that the flags imply. On Redis 7.0 modules' commands are in no category: see module_require_admin. */
typedef struct CommandSpec {
    const char *name;
    RedisModuleCmdFunc handler;
    const char *flags;
    int first_key;
    int last_key;
    int key_step;
    const char *categories;
} CommandSpec;

/* Registers `n` commands. REDISMODULE_ERR when the server refuses one; it has been logged. */
int module_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n);

/* A context that is not bound to a client, for work in event loop callbacks. Lives as long as the module. */
RedisModuleCtx *module_ctx(void);

/* A setting of the server, empty when it has none of this name; to be freed with RedisModule_FreeString(NULL, ..). */
RedisModuleString *module_setting(RedisModuleCtx *ctx, const char *name);
int module_setting_is(RedisModuleCtx *ctx, const char *name, const char *expected);

/* 1: this server is a primary that is not loading its data set. */
int module_is_active_primary(RedisModuleCtx *ctx);
int module_is_importing(RedisModuleCtx *ctx);

/* 1: the command comes from this replica's primary or from the AOF, which say again what was accepted before. */
int module_from_log(RedisModuleCtx *ctx);

/* What the AI.* commands answer a client that may not be blocked. */
#define ERR_BLOCKING_DENIED "ERR Cannot run RedisAI command within a transaction or a LUA script"

/* 1: the calling client may not be blocked (MULTI, Lua, deny-blocking). */
int module_blocking_denied(RedisModuleCtx *ctx);

/* The name of the calling client's user, to be freed with RedisModule_FreeString(ctx, ..). NULL: it has no user and may do anything
 * (the primary, the AOF, a call of another module). */
RedisModuleString *module_caller_name(RedisModuleCtx *ctx);

/* Where modules' commands take no part in ACL categories (Redis 7.0) a user that is not an administrator could run anything
 * that is not forbidden by name. 1 when the caller may run administrator commands; else replies NOPERM and returns 0. Replication, the
 * AOF and, for AI.*, the worker may. */
int module_require_admin(RedisModuleCtx *ctx, const char *command);

/* The same on every server, for what only some uses of a command need. */
int module_is_admin(RedisModuleCtx *ctx, const char *command);

#endif

/* The table entry of a command, and its registration. Each part registers its commands in its *_on_load.
 *
 * A handler has the name of its command, such as AI_MODELEXECUTE_RedisCommand. The callbacks of a client that it blocks
 * end in _Reply, _Disconnected, _Timeout and _Free. A handler works in this order:
 *   1. It reports key positions if the server asks for them (getkeys-api).
 *   2. An internal command, which only the worker may call, checks that the caller is a link (links.h).
 *   3. It checks the number of arguments, the rights of the caller, and the arguments. */
#pragma once

#include <stddef.h>

#include "server/args.h"
#include "server/module_api.h"

/* One command.
 * `flags` are flags of RedisModule_CreateCommand ("write deny-oom", "readonly", "getkeys-api", "admin" ..).
 * `categories` are ACL categories without "@" ("write slow"). NULL: the categories are derived from the flags.
 * Categories have an effect on Valkey and on Redis 7.2 and later. On Redis 7.0 the commands of modules are in no
 * category (see caller_require_admin). */
typedef struct CommandSpec {
    const char *name;
    RedisModuleCmdFunc handler;
    const char *flags;
    int first_key;
    int last_key;
    int key_step;
    const char *categories;
} CommandSpec;

/* How a command uses a key: flags of RedisModule_KeyAtPosWithFlags. */
enum {
    KEY_READ = REDISMODULE_CMD_KEY_RO | REDISMODULE_CMD_KEY_ACCESS,
    KEY_WRITE = REDISMODULE_CMD_KEY_OW | REDISMODULE_CMD_KEY_UPDATE,
    KEY_BOTH = REDISMODULE_CMD_KEY_RW | REDISMODULE_CMD_KEY_ACCESS | REDISMODULE_CMD_KEY_UPDATE,
};

/* For a command with getkeys-api: reports the keys of a range of arguments to the server. `offset` is added to the
 * positions of the range, if the range does not count from the start of the command. `flags` is KEY_READ, KEY_WRITE or
 * KEY_BOTH. */
void report_keys_at(RedisModuleCtx *ctx, int offset, ArgRange range, int flags);

/* Registers `n` commands. Allows the worker's user to run the commands that link_may_run (links.h) accepts. If the
 * server refuses a command, logs the refusal and returns REDISMODULE_ERR. */
int commands_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n);

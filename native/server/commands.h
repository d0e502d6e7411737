/* The module's commands as the server sees them. Each part registers its own QA.* and AI.* commands in its *_on_load;
 * cmd_rg.c has the table of RG.*.
 *
 * A handler has the name of its command, AI_MODELEXECUTE_RedisCommand, or of what its commands have in common; the
 * callbacks of a client that it blocks end in _Reply, _Disconnected, _Timeout, _Free. A handler begins with the key
 * positions (getkeys-api). Then it checks, in this order, the number of arguments, the caller's rights, the arguments;
 * an internal command first checks that the caller is a link. Only a handler replies with an error; the parsers that it
 * calls return one. */
#ifndef QA_COMMANDS_H
#define QA_COMMANDS_H

#include <stddef.h>

#include "server/module_api.h"

/* One command. `flags` are those of RedisModule_CreateCommand ("write deny-oom", "readonly", "getkeys-api", "admin"
 * ..). `categories` are ACL category names without "@" ("write slow"), applied where the server can (Valkey, Redis
 * 7.2+); NULL: those that the flags imply. On Redis 7.0 modules' commands are in no category (see
 * caller_require_admin). */
typedef struct CommandSpec {
    const char *name;
    RedisModuleCmdFunc handler;
    const char *flags;
    int first_key;
    int last_key;
    int key_step;
    const char *categories;
} CommandSpec;

/* Registers `n` commands, and lets the worker's user run those named QA.* and AI.*. Logs a command that the server
 * refuses and returns REDISMODULE_ERR. */
int commands_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n);

#endif

/* The module's commands as the server sees them. Each part registers its commands in its *_on_load.
 *
 * A handler has the name of its command, such as AI_MODELEXECUTE_RedisCommand, or a name for all of its commands. The
 * callbacks of a client that it blocks end in _Reply, _Disconnected, _Timeout and _Free. A handler works in this order:
 *   1. It reports key positions if the server asks for them (getkeys-api).
 *   2. An internal command checks that the caller is a link.
 *   3. It checks the number of arguments, then the rights of the caller, then the arguments.
 * Only a handler replies with an error; the parsers that it calls return an error. */
#ifndef QA_COMMANDS_H
#define QA_COMMANDS_H

#include <stddef.h>

#include "server/module_api.h"

/* One command. `flags` are those of RedisModule_CreateCommand ("write deny-oom", "readonly", "getkeys-api", "admin"
 * ..). `categories` are ACL categories without "@" ("write slow"); NULL: those that follow from the flags. They apply
 * where the server supports them (Valkey, Redis 7.2+). On Redis 7.0 the commands of modules are in no category (see
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

/* Registers `n` commands, and allows the worker's user to run those named QA.* and AI.*. If the server refuses a
 * command, it logs that and returns REDISMODULE_ERR. */
int commands_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n);

#endif

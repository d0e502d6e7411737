/* The table entry of a command, and its registration. Each part registers its commands in its *_on_load.
 *
 * A handler has the name of its command, such as AI_MODELEXECUTE_RedisCommand. A handler of several commands has a name
 * for all of them. If a handler blocks a client, the names of the client's callbacks end in _Reply, _Disconnected,
 * _Timeout and _Free. A handler works in this order:
 *   1. It reports key positions if the server asks for them (getkeys-api).
 *   2. An internal command checks that the caller is a link.
 *   3. It checks the number of arguments, then the rights of the caller, then the arguments.
 * Only a handler replies with an error. The parsers that it calls return an error. */
#ifndef QA_COMMANDS_H
#define QA_COMMANDS_H

#include <stddef.h>

#include "server/module_api.h"

/* One command.
 * `flags` are those of RedisModule_CreateCommand ("write deny-oom", "readonly", "getkeys-api", "admin" ..).
 * `categories` are ACL categories without "@" ("write slow"). NULL: they are derived from the flags. Categories have an
 * effect on Valkey and on Redis 7.2 and later. On Redis 7.0 the commands of modules are in no category (see
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

/* Registers `n` commands. Allows the worker's user to run those whose names start with QA. or AI. If the server refuses
 * a command, logs the refusal and returns REDISMODULE_ERR. */
int commands_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n);

#endif

/* The caller of the current command: its origin and its rights. */
#ifndef QA_CALLER_H
#define QA_CALLER_H

#include "server/module_api.h"

/* 1: the command comes from this replica's primary or from the AOF. They repeat what a primary accepted before. */
int caller_is_log(RedisModuleCtx *ctx);

/* The reply of the AI.* commands to a client that cannot be blocked. */
#define ERR_BLOCKING_DENIED "ERR Cannot run RedisAI command within a transaction or a LUA script"

/* 1: the calling client cannot be blocked (MULTI, Lua, deny-blocking). */
int caller_blocking_denied(RedisModuleCtx *ctx);

/* 1: the calling client tracks keys (CLIENT TRACKING). */
int caller_tracks_keys(RedisModuleCtx *ctx);

/* The name of the calling client's user, to be freed with RedisModule_FreeString(ctx, ..). NULL: it has no user and may
 * do anything (the primary, the AOF, a call of another module). */
RedisModuleString *caller_name(RedisModuleCtx *ctx);

/* 1: the caller may run administrator commands; for AI.* the worker may too. 0: the function has replied with an error.
 * A primary and the AOF may not: no such command is replicated. On Redis 7.0 the commands of modules are in no ACL
 * category, so a user without administrator rights could otherwise run every command that no rule denies by name. */
int caller_require_admin(RedisModuleCtx *ctx, const char *command);

/* The same on every server, for commands that need an administrator only with some arguments. */
int caller_is_admin(RedisModuleCtx *ctx, const char *command);

/* QA.AS runs a command with the rights of this user from now on; NULL: it has ended. The server does not tell the
 * command. */
void caller_act_as(RedisModuleUser *user);

#endif

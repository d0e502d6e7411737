/* The caller of the current command: its origin and its rights. */
#pragma once

#include "server/module_api.h"

/* 1: the command comes from this replica's primary or from the AOF. These commands were accepted by a primary
 * before. */
int caller_is_log(RedisModuleCtx *ctx);

/* The reply of the AI.* commands to a client that cannot be blocked. */
#define ERR_BLOCKING_DENIED "ERR Cannot run RedisAI command within a transaction or a LUA script"

/* 1: the calling client cannot be blocked (MULTI, Lua, deny-blocking). */
int caller_blocking_denied(RedisModuleCtx *ctx);

/* 1: the calling client tracks keys (CLIENT TRACKING). */
int caller_tracks_keys(RedisModuleCtx *ctx);

/* Returns the name of the calling client's user, to be freed. NULL: the client has no user and may
 * do anything (the primary, the AOF, a call of another module). */
RedisModuleString *caller_name(RedisModuleCtx *ctx);

/* Returns 1 if the caller may run administrator commands, or if the caller is the worker and link_may_run accepts the
 * command. Otherwise replies with an error and returns 0. Refuses a primary and the AOF. A command that is replicated
 * therefore calls caller_is_log first. This function checks the rights of other callers only on Redis 7.0, whose ACL
 * categories do not include commands of modules. Later servers check these rights before the command. */
int caller_require_admin(RedisModuleCtx *ctx, const char *command);

/* For commands that need an administrator only with some arguments. Returns 1 if the caller may run administrator
 * commands. Otherwise replies with an error and returns 0. Checks on every server version. Also refuses the worker. */
int caller_is_admin(RedisModuleCtx *ctx, const char *command);

/* Call it before QA.AS runs a command with the rights of `user`, and with NULL after the command. The server does not
 * pass this user to the command. */
void caller_act_as(RedisModuleUser *user);

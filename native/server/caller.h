/* The caller of the current command: where the command comes from, and what its sender may do. */
#ifndef QA_CALLER_H
#define QA_CALLER_H

#include "server/module_api.h"

/* 1: the command comes from this replica's primary or from the AOF, which repeat what a primary accepted before. */
int caller_is_log(RedisModuleCtx *ctx);

/* What the AI.* commands answer a client that may not be blocked. */
#define ERR_BLOCKING_DENIED "ERR Cannot run RedisAI command within a transaction or a LUA script"

/* 1: the calling client may not be blocked (MULTI, Lua, deny-blocking). */
int caller_blocking_denied(RedisModuleCtx *ctx);

/* 1: the calling client tracks keys (CLIENT TRACKING). */
int caller_tracks_keys(RedisModuleCtx *ctx);

/* The name of the calling client's user, to be freed with RedisModule_FreeString(ctx, ..). NULL: it has no user and may
 * do anything (the primary, the AOF, a call of another module). */
RedisModuleString *caller_name(RedisModuleCtx *ctx);

/* On Redis 7.0 modules' commands are in no ACL category, so a user that is not an administrator could run every command
 * that no rule forbids by name. 1 when the caller may run administrator commands, as replication, the AOF and, for
 * AI.*, the worker may; else replies NOPERM and returns 0. */
int caller_require_admin(RedisModuleCtx *ctx, const char *command);

/* The same on every server, for commands of which only some uses need an administrator. */
int caller_is_admin(RedisModuleCtx *ctx, const char *command);

/* QA.AS runs a command with the rights of this user from now on; NULL: no more. The server does not tell the command.
 */
void caller_act_as(RedisModuleUser *user);

#endif

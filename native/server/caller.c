/* These functions ask the server about the current caller, and store nothing between commands. */
#include "server/caller.h"

#include <stdio.h>
#include <strings.h>

#include "server/links.h"

int caller_is_log(RedisModuleCtx *ctx) {
    return (RedisModule_GetContextFlags(ctx) & (REDISMODULE_CTX_FLAGS_REPLICATED | REDISMODULE_CTX_FLAGS_LOADING)) != 0;
}

int caller_blocking_denied(RedisModuleCtx *ctx) {
    int denying = REDISMODULE_CTX_FLAGS_MULTI | REDISMODULE_CTX_FLAGS_LUA | REDISMODULE_CTX_FLAGS_DENY_BLOCKING |
                  REDISMODULE_CTX_FLAGS_LOADING;
    return (RedisModule_GetContextFlags(ctx) & denying) != 0;
}

int caller_tracks_keys(RedisModuleCtx *ctx) {
    RedisModuleClientInfo info = {.version = 1};
    return RedisModule_GetClientInfoById(&info, RedisModule_GetClientId(ctx)) == REDISMODULE_OK &&
           info.flags & REDISMODULE_CLIENTINFO_FLAG_TRACKING;
}

/* Redis 7.0 crashes if a module asks for the user of a client without a user. So this function looks up the client by
 * id. It cannot find the client of a script by id. */
RedisModuleString *caller_name(RedisModuleCtx *ctx) {
    if (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_LUA) return RedisModule_GetCurrentUserName(ctx);
    return RedisModule_GetClientUserNameById(ctx, RedisModule_GetClientId(ctx));
}

int caller_require_admin(RedisModuleCtx *ctx, const char *command) {
    if (caller_is_log(ctx)) {
        RedisModule_ReplyWithError(ctx, "ERR this command is not accepted from a primary or a file");
        return 0;
    }
    if (RedisModule_SetCommandACLCategories) return 1;
    /* link_create_user allows the worker's user to run these commands by name. */
    if (link_may_run(command) && link_is_link(RedisModule_GetClientId(ctx))) return 1;
    return caller_is_admin(ctx, command);
}

static RedisModuleUser *acting;

void caller_act_as(RedisModuleUser *user) { acting = user; }

/* A caller that may run CONFIG RESETSTAT counts as an administrator. The lookup by name does not find users that
 * modules have created, so these users are refused. */
int caller_is_admin(RedisModuleCtx *ctx, const char *command) {
    RedisModuleString *name = caller_name(ctx);
    RedisModuleUser *found = !acting && name ? RedisModule_GetModuleUserFromUserName(name) : NULL;
    RedisModuleUser *user = acting ? acting : found;
    int allowed = 0;
    if (user) {
        RedisModuleString *argv[2] = {RedisModule_CreateString(NULL, "config", 6),
                                      RedisModule_CreateString(NULL, "resetstat", 9)};
        allowed = RedisModule_ACLCheckCommandPermissions(user, argv, 2) == REDISMODULE_OK;
        for (int i = 0; i < 2; i++) RedisModule_FreeString(NULL, argv[i]);
    }
    if (found) RedisModule_FreeModuleUser(found);
    if (!allowed) {
        char error[256];
        snprintf(error, sizeof error, "NOPERM User %.100s has no permissions to run the '%s' command",
                 name ? RedisModule_StringPtrLen(name, NULL) : "?", command);
        RedisModule_ReplyWithError(ctx, error);
    }
    if (name) RedisModule_FreeString(ctx, name);
    return allowed;
}

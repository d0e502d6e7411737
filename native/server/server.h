/* The server in which the module runs: its settings, its role, and a context for work outside of commands. Main thread
 * only. */
#pragma once

#include "server/module_api.h"

#define QA_MODULE_NAME "qa"
#define QA_MODULE_VERSION 1

/* Sets the name and options of the module, and creates the context of server_ctx. Call it before all other parts. */
int server_on_load(RedisModuleCtx *ctx);

/* Returns a context without a client, for work in event loop callbacks. The context exists as long as the module. */
RedisModuleCtx *server_ctx(void);

/* Returns a setting of the server, or "" if the server has no such setting. The caller frees the result with
 * RedisModule_FreeString(NULL, ..). */
RedisModuleString *server_setting(RedisModuleCtx *ctx, const char *name);
int server_setting_is(RedisModuleCtx *ctx, const char *name, const char *expected);

/* 1: this server is a primary and is not loading its data set. */
int server_is_active_primary(RedisModuleCtx *ctx);

/* 1: the command imports keys of a slot that CLUSTER MIGRATESLOTS moves to this server. Clients cannot read these keys
 * yet. */
int server_is_importing(RedisModuleCtx *ctx);

/* The server that the module runs in: its settings, its role, and a context for work outside of any command. Main
 * thread only. */
#ifndef QA_SERVER_H
#define QA_SERVER_H

#include "server/module_api.h"

#define QA_MODULE_NAME "qa"
#define QA_MODULE_VERSION 1

/* Call it before all other parts. It sets the name and options of the module and creates the context below. */
int server_on_load(RedisModuleCtx *ctx);

/* A context without a client, for work in event loop callbacks. It lives as long as the module. */
RedisModuleCtx *server_ctx(void);

/* A setting of the server; empty if the server does not have it. The caller frees it with RedisModule_FreeString(NULL,
 * ..). */
RedisModuleString *server_setting(RedisModuleCtx *ctx, const char *name);
int server_setting_is(RedisModuleCtx *ctx, const char *name, const char *expected);

/* 1: this server is a primary and is not loading its data set. */
int server_is_active_primary(RedisModuleCtx *ctx);

/* 1: the command imports keys of a slot that CLUSTER MIGRATESLOTS moves here. Clients do not see these keys yet. */
int server_is_importing(RedisModuleCtx *ctx);

#endif

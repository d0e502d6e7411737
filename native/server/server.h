/* The server that the module runs in: its settings, its role, and a context for work outside of any command.
 *
 * Everything here is for the server's main thread. */
#ifndef QA_SERVER_H
#define QA_SERVER_H

#include "server/module_api.h"

#define QA_MODULE_NAME "qa"
#define QA_MODULE_VERSION 1

/* Types of the module's messages on the cluster bus: from worker to worker; a change of registrations. */
enum { CLUSTER_MESSAGE = 1, CLUSTER_ADMIN = 2 };

/* The first part to be loaded: the module's name and options, the context below. */
int server_on_load(RedisModuleCtx *ctx);

/* A context that is not bound to a client, for work in event loop callbacks. Lives as long as the module. */
RedisModuleCtx *server_ctx(void);

/* A setting of the server, empty when it has none of this name; to be freed with RedisModule_FreeString(NULL, ..). */
RedisModuleString *server_setting(RedisModuleCtx *ctx, const char *name);
int server_setting_is(RedisModuleCtx *ctx, const char *name, const char *expected);

/* 1: this server is a primary that is not loading its data set. */
int server_is_active_primary(RedisModuleCtx *ctx);

/* 1: the command imports keys of a slot that CLUSTER MIGRATESLOTS is bringing here; clients do not see them yet. */
int server_is_importing(RedisModuleCtx *ctx);

#endif

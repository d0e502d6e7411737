/* RG.UNREGISTER, RG.PAUSEREGISTRATIONS, RG.UNPAUSEREGISTRATIONS, RG.CLEARREGISTRATIONSSTATS: here, on the replicas and, by the
 * cluster bus, on all other shards. */
#ifndef QA_REGISTRY_ADMIN_H
#define QA_REGISTRY_ADMIN_H

#include "server/module_api.h"

int registry_unregister_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);
int registry_pause_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc); /* and RG.UNPAUSEREGISTRATIONS */
int registry_clear_stats_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

/* One of these commands ran on another shard. */
void registry_admin_message(RedisModuleCtx *ctx, const char *payload, size_t length);

#endif

/* RG.UNREGISTER, RG.PAUSEREGISTRATIONS, RG.UNPAUSEREGISTRATIONS, RG.CLEARREGISTRATIONSSTATS: they act here, on the
 * replicas and, by the cluster bus, on all other shards. */
#ifndef QA_REGISTRY_ADMIN_H
#define QA_REGISTRY_ADMIN_H

#include "server/module_api.h"

int registry_admin_on_load(RedisModuleCtx *ctx);

int RG_UNREGISTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);
int RG_PAUSEREGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv,
                                       int argc); /* and RG.UNPAUSEREGISTRATIONS */
int RG_CLEARREGISTRATIONSSTATS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

#endif

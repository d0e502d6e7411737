/* RG.UNREGISTER, RG.PAUSEREGISTRATIONS, RG.UNPAUSEREGISTRATIONS, RG.CLEARREGISTRATIONSSTATS. They change this shard,
 * its replicas and, by messages on the cluster bus, all other shards. */
#ifndef QA_REGISTRY_ADMIN_H
#define QA_REGISTRY_ADMIN_H

#include "server/module_api.h"

int registry_admin_on_load(RedisModuleCtx *ctx);

#endif

/* The ids of removed registrations. A removed registration must not return from another shard that still has it.
 *
 * Ids are unique, so the id is enough. The module keeps the newest MAX_TOMBSTONES ids. A registration whose id was
 * discarded can return from a shard that was unreachable since the removal; then a user must unregister it again. */
#ifndef QA_TOMBSTONES_H
#define QA_TOMBSTONES_H

#include "server/module_api.h"

enum { MAX_TOMBSTONES = 10000 };

/* Also gives the registry access to the tombstones. */
int tombstones_on_load(RedisModuleCtx *ctx);

/* 0: the id was already there. */
int tombstones_add(RedisModuleString *id);
size_t tombstones_count(void);

#endif

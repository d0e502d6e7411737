/* Ids of registrations that have been removed for ever: such a registration never comes back, wherever it comes from.
 *
 * Ids of registrations are never used twice, so an id is all that must be remembered. The newest MAX_TOMBSTONES are
 * kept. A registration whose tombstone has made room for newer ones can come back, from a shard that has not been
 * reached since: it has to be unregistered once more. */
#ifndef QA_TOMBSTONES_H
#define QA_TOMBSTONES_H

#include "server/module_api.h"

enum { MAX_TOMBSTONES = 10000 };

int tombstones_on_load(RedisModuleCtx *ctx); /* by the registry */

/* 0: there was one already. */
int tombstones_add(RedisModuleString *id);
int tombstones_has(RedisModuleString *id);
size_t tombstones_count(void);
void tombstones_clear(void);

void tombstones_save(RedisModuleIO *rdb);
/* 0: the file is damaged. */
int tombstones_load(RedisModuleIO *rdb);

/* Says all of them again, as QA.UNREGISTER, to replicas and to the AOF. */
void tombstones_replicate(RedisModuleCtx *ctx);

#endif

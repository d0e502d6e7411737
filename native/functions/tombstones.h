/* Ids of removed registrations: such a registration must never come back, whichever shard still has it.
 *
 * No two registrations ever have the same id, so the id is enough. Only the newest MAX_TOMBSTONES stay. A registration
 * whose tombstone has made room for newer ones can come back from a shard that has been out of reach since; then a user
 * has to unregister it once more. */
#ifndef QA_TOMBSTONES_H
#define QA_TOMBSTONES_H

#include "server/module_api.h"

enum { MAX_TOMBSTONES = 10000 };

int tombstones_on_load(RedisModuleCtx *ctx); /* the registry calls it */

/* 0: there was one already. */
int tombstones_add(RedisModuleString *id);
int tombstones_has(RedisModuleString *id);
size_t tombstones_count(void);
void tombstones_clear(void);

void tombstones_save(RedisModuleIO *rdb);
/* 0: the file is damaged. */
int tombstones_load(RedisModuleIO *rdb);

/* Replicates all of them as QA.UNREGISTER, to replicas and to the AOF. */
void tombstones_replicate(RedisModuleCtx *ctx);

#endif

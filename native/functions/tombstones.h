/* Tombstones: the ids of removed registrations. Another shard may still have a removed registration and send it to this
 * shard. The tombstone prevents this shard from storing the registration again.
 *
 * The module stores the newest MAX_TOMBSTONES ids. If an older id was discarded, its registration can return from a
 * shard that has been unreachable since the removal. Then a user must unregister the registration again. */
#pragma once

#include "server/module_api.h"

enum { MAX_TOMBSTONES = 10000 };

int tombstones_on_load(RedisModuleCtx *ctx);
/* Adds an id to the list. Returns 1, or 0 if the id was already in the list. */
int tombstones_add(RedisModuleString *id);
int tombstones_have(RedisModuleString *id);
size_t tombstones_count(void);
void tombstones_clear(void);
void tombstones_save(RedisModuleIO *rdb);
/* Reads the ids that tombstones_save has written. Returns 1, or 0 if the file is damaged. */
int tombstones_load(RedisModuleIO *rdb);
/* Sends all ids to the replicas and the AOF. */
void tombstones_replicate(RedisModuleCtx *ctx);

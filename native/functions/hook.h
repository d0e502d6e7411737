/* Calls functions for keyspace events. Implements the keymiss hook: if a client reads a missing key, the client gets
 * the answer of a function. A hooked read is a read command with at least one hooked key: one KeysReader
 * registration matches the key and names the command in `commands`. */
#pragma once

#include "server/module_api.h"

typedef struct HookStats {
    unsigned long long hits;           /* hooked reads of an existing key, or of a key that no registration matches */
    unsigned long long misses;         /* hooked reads of a missing key that a registration matches */
    unsigned long long inferences;     /* misses whose reply the function replaced */
    unsigned long long dropped_events; /* events without a job, because the queue was full */
} HookStats;

extern HookStats hook_stats;

int hook_on_load(RedisModuleCtx *ctx);

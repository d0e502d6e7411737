/* Keyspace events for registrations, and the keymiss hook, in which a client's read of a missing key waits for a
 * function's answer. */
#ifndef QA_HOOK_H
#define QA_HOOK_H

#include "server/module_api.h"

typedef struct HookStats {
    unsigned long long hits;       /* hooked reads that found their key, or that no registration wanted */
    unsigned long long misses;     /* hooked reads that missed a key which a registration wants */
    unsigned long long inferences; /* misses whose reply the function replaced */
    unsigned long long dropped_events;
} HookStats;

extern HookStats hook_stats;

int hook_on_load(RedisModuleCtx *ctx);

int RG_INNERHOOK_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

#endif

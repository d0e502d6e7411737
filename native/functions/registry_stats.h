/* The results of a registration's runs: its counters, RG.DUMPREGISTRATIONS, and the repair after a full queue. */
#ifndef QA_REGISTRY_STATS_H
#define QA_REGISTRY_STATS_H

#include "functions/registry.h"
#include "jobs/jobs.h"

int registry_stats_on_load(RedisModuleCtx *ctx);

/* registry_triggered: a job of this registration was queued, or dropped because the queue was full. registry_ended: one
 * has ended. */
void registry_triggered(Registration *registration, int queued);
void registry_ended(RedisModuleString *id, const JobResult *result);

/* The queue dropped an event for this registration: it gets an onregistered job. */
void registry_overflowed(Registration *registration);

/* Queues the onregistered jobs of registrations that lost events, once the queue has drained to half. */
void registry_repair(RedisModuleCtx *ctx);

void registry_clear_stats(void);

/* How many batches of streams there have been. */
unsigned long long registry_stream_runs(void);

int RG_DUMPREGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

#endif

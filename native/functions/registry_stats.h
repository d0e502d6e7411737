/* The counters of registrations, and the recovery of a registration that lost events to a full queue. */
#ifndef QA_REGISTRY_STATS_H
#define QA_REGISTRY_STATS_H

#include "functions/registry.h"
#include "jobs/jobs.h"

/* The queue has accepted a job of this registration, or has dropped it because it was full (`queued` 0). */
void registry_triggered(Registration *registration, int queued);
/* A job of the registration with this id has ended. */
void registry_ended(RedisModuleString *id, const JobResult *result);

/* Keeps a copy of the error as the last error. */
void registry_set_error(RunCounters *counters, const char *error);
void registry_clear_stats(void);

/* The queue has dropped an event for this registration. The registration gets an onregistered job later. */
void registry_overflowed(Registration *registration);

/* Queues the onregistered jobs of registrations that lost events, once the queue is at most half full. */
void registry_repair(void);

#endif

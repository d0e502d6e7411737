/* The counters of registrations, and the recovery of a registration that lost events because the queue was full. An
 * onregistered job calls the function that the script has given as `onRegistered`. In this call, the script finds the
 * changes whose events were lost. */
#pragma once

#include "functions/registry.h"
#include "jobs/jobs.h"

/* Call it after an event or a trigger. `queued` 1: the queue has accepted a job of this registration. 0: the queue was
 * full and dropped the job. */
void registry_triggered(Registration *registration, int queued);
/* Counts the result of a job. Call it when a job of the registration with this id has ended. */
void registry_ended(RedisModuleString *id, const JobResult *result);

/* Stores a copy of `error` as the last error. */
void registry_set_error(RunCounters *counters, const char *error);
void registry_clear_stats(void);

/* Call it when the queue has dropped an event for this registration. The registration later gets an onregistered job.
 */
void registry_overflowed(Registration *registration);

/* Does nothing while more than qa.max-events / 2 jobs without a client are queued. Otherwise queues the onregistered
 * jobs of the registrations that have lost events. */
void registry_repair(void);

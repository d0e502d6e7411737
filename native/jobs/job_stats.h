/* Counters of jobs by their kinds. */
#pragma once

#include "jobs/job.h"

enum { JOB_KINDS = 10, JOB_LATENCY_BUCKETS = 33 };

/* Bucket b counts durations d (in microseconds) with 2^(b-1) <= d < 2^b. Bucket 0 counts durations below 1. The last
 * bucket also counts all longer durations. */
typedef struct JobKindStats {
    unsigned long long submitted, ok, overridden, skipped, failed, expired, lost, client_gone, aborted, refused,
        retried;
    unsigned long long queue_us[JOB_LATENCY_BUCKETS], run_us[JOB_LATENCY_BUCKETS];
} JobKindStats;

/* Returns the counters for the kind of this class. A kind that has no counters counts as `other`. */
JobKindStats *job_stats(const JobClass *class);
/* Returns the counters with this index, and the name of their kind. NULL: the index is too large. */
const JobKindStats *job_stats_at(int index, const char **kind);

void job_stats_ended(JobKindStats *stats, const JobResult *result);
/* Counts a duration, in microseconds, in its bucket. */
void job_stats_record(unsigned long long *buckets, uint64_t us);

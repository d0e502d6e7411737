/* Counters of jobs by their kinds. */
#ifndef QA_JOB_STATS_H
#define QA_JOB_STATS_H

#include "jobs/job.h"

enum { JOB_KINDS = 10, JOB_LATENCY_BUCKETS = 33 };

/* Bucket b counts durations d (in microseconds) with 2^(b-1) <= d < 2^b. Bucket 0 counts durations below 1. */
typedef struct JobKindStats {
    unsigned long long submitted, ok, overridden, skipped, failed, expired, lost, client_gone, aborted, refused,
        retried;
    unsigned long long queue_us[JOB_LATENCY_BUCKETS], run_us[JOB_LATENCY_BUCKETS];
} JobKindStats;

/* The counters of the kind of this class. A kind without counters of its own counts as `other`. */
JobKindStats *job_stats(const JobClass *class);
/* The counters by index; NULL beyond the last kind. */
const JobKindStats *job_stats_at(int index, const char **kind);

void job_stats_ended(JobKindStats *stats, const JobResult *result);
/* Adds a duration to the buckets. */
void job_stats_record(unsigned long long *buckets, uint64_t us);

#endif

/* To add a kind of jobs, add its name to KINDS and raise JOB_KINDS. */
#include "jobs/job_stats.h"

#include <string.h>

static const char *const KINDS[JOB_KINDS] = {"script",     "trigger",     "event",     "onregistered", "command",
                                             "model.load", "script.load", "model.run", "dag.run",      "other"};
static JobKindStats all[JOB_KINDS];

JobKindStats *job_stats(const JobClass *class) {
    int kind = 0;
    while (kind < JOB_KINDS - 1 && strcmp(KINDS[kind], class->kind)) kind++;
    return &all[kind];
}

const JobKindStats *job_stats_at(int index, const char **kind) {
    if (index >= JOB_KINDS) return NULL;
    *kind = KINDS[index];
    return &all[index];
}

void job_stats_record(unsigned long long *buckets, uint64_t us) {
    int bucket = us ? 64 - __builtin_clzll(us) : 0;
    buckets[bucket < JOB_LATENCY_BUCKETS ? bucket : JOB_LATENCY_BUCKETS - 1]++;
}

void job_stats_ended(JobKindStats *stats, const JobResult *result) {
    switch (result->cause) {
    case CAUSE_DEADLINE: stats->expired++; return;
    case CAUSE_LOST: stats->lost++; return;
    case CAUSE_CLIENT_GONE: stats->client_gone++; return;
    case CAUSE_ABORTED: stats->aborted++; return;
    case CAUSE_PUSHED_OUT: stats->refused++; return;
    case CAUSE_ANSWERED: break;
    }
    switch (result->status) {
    case JOB_OVERRIDE: stats->overridden++; break;
    case JOB_SKIP: stats->skipped++; break;
    case JOB_FAILED: stats->failed++; break;
    case JOB_TIMEDOUT: stats->expired++; break;
    default: stats->ok++; break;
    }
}

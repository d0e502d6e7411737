/* Creates and frees jobs. */
#include "jobs/job_state.h"

#include <string.h>

#include "server/args.h"
#include "server/config.h"
#include "server/server.h"
#include "server/texts.h"

/* The worker runs a large job in parts. So the cost of a job counts as at most MAX_HOLD against the limit for the
 * user's jobs in the worker. */
enum { MAX_HOLD = 16, MAX_COST = 65536, MAX_ERROR = 64 * 1024 };

Job *job_new(const JobClass *class, void *data, long long timeout_ms) {
    Job *job = RedisModule_Calloc(1, sizeof *job);
    job->class = class;
    job->data = data;
    job->attempt = 1;
    job->stats = job_stats(class);
    job->timeout_ms = timeout_ms < 0 ? 0 : timeout_ms ? timeout_ms : config.job_timeout_ms;
    job->queued_us = RedisModule_MonotonicMicroseconds();
    uint32_t cost = class->cost ? class->cost(data) : 0;
    if (cost > MAX_COST) cost = MAX_COST;
    job->node.cost = cost ? cost : 1;
    job->node.hold.cost = class->of_user ? 1 : cost > MAX_HOLD ? MAX_HOLD : cost;
    return job;
}

void job_free(Job *job) {
    if (job->is_signalled) RedisModule_StopTimer(server_ctx(), job->unserved, NULL);
    if (job->awaited) RedisModule_FreeString(NULL, job->awaited);
    if (job->class->free) job->class->free(job->data);
    for (int i = 0; i < job->result.argc; i++) RedisModule_FreeString(NULL, job->result.argv[i]);
    RedisModule_Free(job->result.argv);
    RedisModule_Free(job->error);
    RedisModule_Free(job);
}

void job_set_result(Job *job, const JobResult *result) {
    job->result = *result;
    /* 0 means that the job never ran. So run_us of a job that ran is at least 1. */
    job->result.run_us = job->started_us ? (long long)(RedisModule_MonotonicMicroseconds() - job->started_us) + 1 : 0;
    if (result->error) {
        size_t length = strnlen(result->error, MAX_ERROR);
        job->error = text_new(result->error, length).data;
        line_clean(job->error, length);
        job->result.error = job->error;
    }
    job->result.argv = result->argc ? RedisModule_Alloc((size_t)result->argc * sizeof *job->result.argv) : NULL;
    for (int i = 0; i < result->argc; i++) job->result.argv[i] = RedisModule_HoldString(NULL, result->argv[i]);
}

/* Writes the usual replies to the clients of jobs, and computes how long a job may still wait. */
#include "jobs/job.h"

#include "server/resp_reply.h"

void job_default_reply(RedisModuleCtx *ctx, const JobResult *result) {
    if (result->status == JOB_FAILED) {
        RedisModule_ReplyWithError(ctx, result->error);
    } else if ((result->status == JOB_OK || result->status == JOB_OVERRIDE) && result->argc) {
        size_t length;
        const char *buffer = RedisModule_StringPtrLen(result->argv[0], &length);
        resp_reply(ctx, buffer, length, 0);
    } else if (result->status == JOB_TIMEDOUT) {
        RedisModule_ReplyWithSimpleString(ctx, "TIMEDOUT");
    } else {
        RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
}

int job_timed_out(const JobResult *result) {
    return result->status == JOB_TIMEDOUT || (result->cause == CAUSE_DEADLINE && result->run_us == 0);
}

long long job_wait_left_ms(uint64_t until_us) {
    if (!until_us) return 0;
    long long left = ((long long)until_us - (long long)RedisModule_MonotonicMicroseconds()) / 1000;
    return left < 1 ? 1 : left;
}

void job_ok_reply(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    if (result->status == JOB_FAILED) RedisModule_ReplyWithError(ctx, result->error);
    else RedisModule_ReplyWithSimpleString(ctx, "OK");
}

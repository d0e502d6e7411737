/* The clients that wait for jobs: blocks them, and releases them when their jobs have ended. */
#ifndef QA_JOB_CLIENTS_H
#define QA_JOB_CLIENTS_H

#include "jobs/job_state.h"

/* `left` is called when the client of a job that has not ended leaves, or stops waiting for it. */
void clients_on_load(void (*left)(RedisModuleCtx *ctx, Job *job));

/* 0: the server does not let this client wait. Valkey refuses clients that have subscriptions. */
int clients_block(RedisModuleCtx *ctx, Job *job);

/* The job has ended. Its client gets the reply, and then the job is freed. */
void clients_release(RedisModuleCtx *ctx, Job *job);

#endif

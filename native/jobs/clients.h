/* Blocks the clients that wait for jobs, and unblocks them when their jobs have ended. */
#pragma once

#include "jobs/job_state.h"

/* clients.c calls `left` when a client disconnects or stops waiting before its job has ended. */
void clients_on_load(void (*left)(RedisModuleCtx *ctx, Job *job));

/* Blocks the calling client until clients_release() is called for `job`. Returns 1, or 0 if the server does not block
 * this client. For example, Valkey refuses to block clients that have subscriptions. */
int clients_block(RedisModuleCtx *ctx, Job *job);

/* Call it when the job has ended. The client gets the reply, and then the job is freed. */
void clients_release(RedisModuleCtx *ctx, Job *job);

/* Jobs: work for a shard's worker, and the clients that wait for the results. A command creates a job with a JobClass
 * (job.h, which also defines the words notice, link, hand out and retry). worker/qa_commands.c gives jobs to the worker
 * and receives their results. */
#pragma once

#include "jobs/job.h"
#include "jobs/queues.h"

/* Blocks the calling client and queues a job for it. `timeout_ms` is the time limit of the job, from now on. 0: the
 * limit is `qa.job-timeout-ms`. Negative: no deadline. (For a class with `queue_timeout`, see JobClass.)
 * 1: the job is queued. 0: the job was refused, `data` was freed, and the client has got an error or the reply of the
 * class. Reasons for a refusal: the queue is full, no worker is configured, or the client cannot be blocked (MULTI,
 * Lua, a deny-blocking client). */
int jobs_submit_blocking(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms);

/* Returns the error line that every new job of a client gets if there can be no worker. NULL: jobs are accepted. */
const char *jobs_refusal(void);

/* Queues a job without a client. 0: the queue for these jobs is full, and `data` has been freed. `timeout_ms` has the
 * same meaning as in jobs_submit_blocking, but the time starts when the worker gets the job, because these jobs may be
 * queued for a long time. */
int jobs_submit(const JobClass *class, void *data, long long timeout_ms);

/* Ends all queued jobs of the registration with this id. Their clients get `error`. `ctx` must be a context that may
 * write keys. */
void jobs_abort_queued(RedisModuleCtx *ctx, RedisModuleString *registration, const char *error);

/* ---- For qa_commands.c and for statistics ---- */

int jobs_on_load(RedisModuleCtx *ctx);

/* The functions of native/worker that native/jobs calls. */
typedef struct JobsWorker {
    const char *(*refusal)(void); /* returns NULL, or an error line that says why there can be no worker */
    void (*wake)(void);           /* wakes a link that waits in QA.NEXT, because a job may be available */
    /* Kills the worker and does not wait for its death. jobs_worker_lost is called later. */
    void (*kill)(const char *reason, int innocent);
} JobsWorker;

/* Call it once, at load time, before the first job. `worker` must live as long as the module. */
void jobs_attach(const JobsWorker *worker);

/* Takes the next job that fits into `capacity`, subtracts the job from `capacity`, and writes the job as one element of
 * the reply to the calling link. `ready` is 1 if the worker has called QA.READY, else 0. Returns 0 if there is no such
 * job, else 1. */
int jobs_hand_out(RedisModuleCtx *ctx, int ready, JobsCapacity *capacity);

/* Ends the job with the result that QA.DONE reports. 0: no job with this id is running. */
int jobs_done(RedisModuleCtx *ctx, uint64_t id, JobResult *result);

/* Call it when the worker has died. The jobs that the worker had return to the queue. If this was the second attempt of
 * a job, the job fails. `innocent` 1: the module has killed the worker because of a cancelled job, so this death does
 * not count as an attempt of the other jobs. `ctx` must be a context that may write keys. */
void jobs_worker_lost(RedisModuleCtx *ctx, int innocent);

size_t jobs_queued_clients(void);
size_t jobs_queued_events(void);
size_t jobs_running(void);
/* Returns how many queued jobs were ended to make space for a user with fewer jobs. */
unsigned long long jobs_pushed_out(void);

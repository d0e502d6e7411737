/* Jobs: the work of a shard's worker, and the clients that wait for it.
 *
 * Everything here runs on the server's main thread. A command creates a job and describes it by a JobClass (job.h).
 * qa_commands.c hands jobs to the worker and brings back their results. This room owns their lives:
 *   jobs.c       submits, starts and ends jobs, and enforces deadlines
 *   queues.c     the queues, and the retries after a worker's death
 *   clients.c    the clients that wait
 *   cancelled.c  cancelled jobs that the worker may still work on
 * The room does not know the rooms above it; it calls the worker through JobsWorker. */
#ifndef QA_JOBS_H
#define QA_JOBS_H

#include "jobs/job.h"
#include "jobs/queues.h"

/* Blocks the calling client and queues a job for it. 1: the job is queued. 0: the job was refused, because the queue is
 * full, no worker is configured, or the client cannot be blocked (MULTI, Lua, a deny-blocking client). Then the
 * function has replied with the error, or as the class does, and has freed `data`. `timeout_ms` 0: `qa.job-timeout-ms`;
 * negative: no deadline. */
int jobs_submit_blocking(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms);

/* NULL, or the error that refuses every new job of a client, because there can be no worker. */
const char *jobs_refusal(void);

/* Queues a job without a client. 0: the queue of such jobs is full, and `data` has been freed. The timeout counts from
 * the moment when the worker gets the job, because such jobs may be queued for long. */
int jobs_submit(const JobClass *class, void *data, long long timeout_ms);

/* Queues a notice: a job with id 0, which the worker gets once and does not answer (model.drop, unregister, message,
 * cancel). 0: too many notices are queued, and `data` has been freed. */
int jobs_notify(const JobClass *class, void *data);

/* Ends the queued jobs of a registration with this error. Needs a context that may write keys. */
void jobs_abort_queued(RedisModuleCtx *ctx, RedisModuleString *registration, const char *error);

/* ---- For the part that hands out jobs, and for statistics ---- */

int jobs_on_load(RedisModuleCtx *ctx);

/* The worker, as far as jobs need it. */
typedef struct JobsWorker {
    const char *(*refusal)(void);                   /* NULL, or an error line: why there can be no worker */
    void (*wake)(void);                             /* a job may be available */
    void (*kill)(const char *reason, int innocent); /* returns at once; jobs_worker_lost follows */
} JobsWorker;

/* Call it once, at load time, before the first job. `worker` must live as long as the module. */
void jobs_attach(const JobsWorker *worker);

/* QA.NEXT was called. */
void jobs_asked(void);

/* Takes the next job for which there is capacity, counts it, and writes it as one array element of the calling link's
 * reply. 0: there is no such job. */
int jobs_hand_out(RedisModuleCtx *ctx, int ready, JobsCapacity *capacity);

/* QA.DONE. 0: no such job is running. */
int jobs_done(RedisModuleCtx *ctx, uint64_t id, JobResult *result);

/* The worker died. Its jobs return to the queue, or fail the second time. `innocent`: the module killed the worker for
 * a job that had been cancelled, so this death does not count against the other jobs. Needs a context that may write
 * keys. */
void jobs_worker_lost(RedisModuleCtx *ctx, int innocent);

size_t jobs_queued_clients(void);
size_t jobs_queued_events(void);
size_t jobs_running(void);
/* How many queued jobs were replaced by jobs of users with fewer jobs. */
unsigned long long jobs_pushed_out(void);

#endif

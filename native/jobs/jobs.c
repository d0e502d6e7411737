/* Submits, starts and ends jobs, and enforces their deadlines. A job is queued, running, or ended with a pending reply
 * to its client. The dictionary by_id contains the queued and running jobs.
 *
 * Only end() ends a job. end() removes the job from its queue or from the list of running jobs, and calls `finish` of
 * its class. If the job has no client, end() frees the job. If the job has a client, clients.c frees the job after the
 * reply. An ended job is not in by_id, so a later QA.DONE does not find the job.
 *
 * If a running job ends before the worker has answered, the worker may still work on the job. So cancelled.c keeps a
 * record of the job. */
#include "jobs/jobs.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jobs/cancelled.h"
#include "jobs/clients.h"
#include "jobs/flows.h"
#include "jobs/job_state.h"
#include "server/caller.h"
#include "server/config.h"
#include "server/resp.h"
#include "server/server.h"

enum { MAX_LATE_MS = 86400000 };

static uint64_t next_id = 1;
static RedisModuleDict *by_id; /* job id -> Job, queued or running */
static Job *running;
static size_t running_count;
static unsigned long long pushed_out;
static const JobsWorker *worker;

void jobs_attach(const JobsWorker *to) {
    worker = to;
    queues_attach(to->wake);
    cancelled_attach(to->kill);
}

const char *jobs_refusal(void) { return worker->refusal(); }
size_t jobs_queued_clients(void) {
    return queues_length(QUEUE_OF_EARLY) + queues_length(QUEUE_OF_CLIENTS) + queues_length(QUEUE_OF_MODELS) +
           queues_functions();
}
size_t jobs_queued_events(void) { return queues_length(QUEUE_OF_EVENTS) + queues_length(QUEUE_OF_BACKGROUND); }
size_t jobs_running(void) { return running_count; }
unsigned long long jobs_pushed_out(void) { return pushed_out; }

/* ---- The end of a job ---- */

static void unlink_running(Job *job) {
    if (job->previous_running) job->previous_running->next_running = job->next_running;
    else running = job->next_running;
    if (job->next_running) job->next_running->previous_running = job->previous_running;
    job->next_running = job->previous_running = NULL;
    running_count--;
    queues_retry_ended(job);
}

static void disarm(Job *job) {
    if (job->deadline_us) RedisModule_StopTimer(server_ctx(), job->timer, NULL);
    job->deadline_us = 0;
}

/* Ends a job. Copies the parts of `result` that the client's reply needs. Afterwards the job is freed, or clients.c
 * owns it. */
static void end(RedisModuleCtx *ctx, Job *job, const JobResult *result) {
    disarm(job);
    if (job->state == JOB_QUEUED) {
        queues_remove(job);
    } else {
        unlink_running(job);
        queues_release(job->queue, &job->node.hold);
    }
    RedisModule_DictDelC(by_id, &job->id, sizeof job->id, NULL);
    job->state = JOB_ENDED;
    job_set_result(job, result);
    job_stats_ended(job->stats, &job->result);
    if (job->started_us) job_stats_record(job->stats->run_us, (uint64_t)job->result.run_us);
    queues_next_in_order(job->order, job->queue);
    if (job->class->finish) job->refusal = job->class->finish(ctx, job->data, &job->result);
    if (job->client) clients_release(ctx, job);
    else job_free(job);
}

static void end_failed(RedisModuleCtx *ctx, Job *job, JobCause cause, const char *error) {
    JobResult result = {.status = JOB_FAILED, .error = error, .cause = cause};
    end(ctx, job, &result);
}

static void JOB_Timeout(RedisModuleCtx *ctx, void *data) {
    Job *job = data;
    job->deadline_us = 0;
    uint64_t from = job->client ? job->queued_us : job->started_us;
    char error[128];
    snprintf(error, sizeof error, "DEADLINE job %s %lld ms, limit %lld ms", job->state == JOB_QUEUED ? "waited" : "ran",
             (long long)((RedisModule_MonotonicMicroseconds() - from) / 1000), job->timeout_ms);
    if (job->state == JOB_RUNNING) cancelled_add(job, 0);
    end_failed(ctx, job, CAUSE_DEADLINE, error);
}

/* Ends a job whose client no longer waits for it. Called by clients.c. */
static void on_left(RedisModuleCtx *ctx, Job *job) {
    if (job->state == JOB_RUNNING) {
        long long left = MAX_LATE_MS;
        uint64_t now = RedisModule_MonotonicMicroseconds();
        if (job->deadline_us) left = job->deadline_us > now ? (long long)((job->deadline_us - now) / 1000) : 0;
        cancelled_add(job, left);
    }
    end_failed(ctx, job, CAUSE_CLIENT_GONE, "CANCELLED client left");
}

void jobs_abort_queued(RedisModuleCtx *ctx, RedisModuleString *registration, const char *error) {
    size_t count = 0, length;
    Job *job, **found = RedisModule_Alloc((RedisModule_DictSize(by_id) + 1) * sizeof *found);
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(by_id, "^", NULL, 0);
    while (RedisModule_DictNextC(iterator, &length, (void **)&job))
        if (job->state == JOB_QUEUED && job->class->registration &&
            !RedisModule_StringCompare(job->class->registration(job->data), registration))
            found[count++] = job;
    RedisModule_DictIteratorStop(iterator);
    for (size_t i = 0; i < count; i++) end_failed(ctx, found[i], CAUSE_ABORTED, error);
    RedisModule_Free(found);
}

/* ---- Submitting ---- */

static void arm(Job *job) {
    if (!job->timeout_ms) return;
    job->deadline_us = RedisModule_MonotonicMicroseconds() + (uint64_t)job->timeout_ms * 1000;
    job->timer = RedisModule_CreateTimer(server_ctx(), job->timeout_ms, JOB_Timeout, job);
}

static void enqueue(Job *job, QueueName name) {
    job->id = next_id++;
    job->stats->submitted++;
    RedisModule_DictSetC(by_id, &job->id, sizeof job->id, job);
    queues_add(job, name);
}

static int refuse(RedisModuleCtx *ctx, const JobClass *class, void *data, const char *error) {
    job_stats(class)->refused++;
    if (class->free) class->free(data);
    RedisModule_ReplyWithError(ctx, error);
    return 0;
}

/* Makes space in a full queue: if another user has at least two jobs more than the calling user, usually ends the
 * newest job of the user with the most jobs (queues_rival). So a user that fills the queue does not block other users.
 * `queued` is the number of queued jobs, for the error of the ended job. Returns 1, or 0 if there is no such job. */
static int make_place(RedisModuleCtx *ctx, const JobClass *class, void *data, QueueName name, const QueuePlace *place,
                      size_t queued) {
    Job *rival = queues_rival(class, data, name, place);
    if (!rival || !rival->client) return 0;
    char error[160];
    snprintf(error, sizeof error,
             "OVERLOADED queue is full: %zu jobs, limit %lld (qa.max-queue), and others have fewer jobs, try again "
             "later",
             queued, config.max_queue);
    pushed_out++;
    end_failed(ctx, rival, CAUSE_PUSHED_OUT, error);
    return 1;
}

static int refuse_blocking(RedisModuleCtx *ctx, Job *job) {
    const char *error = "ERR the server does not block a connection with subscriptions: use another connection";
    JobResult result = {.status = JOB_FAILED, .error = error, .cause = CAUSE_ANSWERED};
    job->stats->refused++;
    if (job->class->reply) job->class->reply(ctx, job->data, &result);
    else job_default_reply(ctx, &result);
    job_free(job);
    return 0;
}

int jobs_submit_blocking(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms) {
    char error[160];
    if (caller_blocking_denied(ctx)) return refuse(ctx, class, data, ERR_BLOCKING_DENIED);
    if (jobs_refusal()) return refuse(ctx, class, data, jobs_refusal());
    QueueName name = queues_of_client(class);
    QueuePlace place = flows_of_caller(ctx);
    size_t queued = name == QUEUE_OF_FUNCTIONS ? queues_functions() : queues_length(name);
    if ((long long)queued >= config.max_queue && !make_place(ctx, class, data, name, &place, queued)) {
        snprintf(error, sizeof error, "OVERLOADED queue is full: %zu jobs, limit %lld (qa.max-queue), try again later",
                 queued, config.max_queue);
        return refuse(ctx, class, data, error);
    }
    Job *job = job_new(class, data, timeout_ms);
    job->place = place;
    if (!clients_block(ctx, job)) return refuse_blocking(ctx, job);
    if (class->in_order) job->order = order_find(class->registration(data));
    arm(job);
    enqueue(job, name);
    return 1;
}

int jobs_submit(const JobClass *class, void *data, long long timeout_ms) {
    QueueName name = class->before_ready ? QUEUE_OF_EARLY : class->of_user ? QUEUE_OF_BACKGROUND : QUEUE_OF_EVENTS;
    if ((long long)queues_length(name) >= config.max_events) {
        job_stats(class)->refused++;
        if (class->free) class->free(data);
        return 0;
    }
    Job *job = job_new(class, data, timeout_ms);
    /* Registrations take turns, so many events of one registration do not delay the events of others. */
    if (name == QUEUE_OF_BACKGROUND && class->registration) job->place = flows_of_name(class->registration(data));
    enqueue(job, name);
    return 1;
}

/* ---- Handing out ---- */

static void start(Job *job) {
    job->state = JOB_RUNNING;
    job->started_us = RedisModule_MonotonicMicroseconds();
    job_stats_record(job->stats->queue_us, job->started_us - job->queued_us);
    job->next_running = running;
    if (running) running->previous_running = job;
    running = job;
    running_count++;
    if (job->client && !job->class->unmeasured) RedisModule_BlockedClientMeasureTimeStart(job->client);
    if (job->client && job->class->queue_timeout) {
        disarm(job);
        job->timeout_ms = config.job_timeout_ms;
        arm(job);
    }
    if (!job->client) arm(job);
}

/* Returns the time when the job arrived, in microseconds of CLOCK_MONOTONIC, because the worker compares the time with
 * this clock. RedisModule_MonotonicMicroseconds may count from a different start. */
static long long came_us(const Job *job) {
    struct timespec now;
    if (!job->id || clock_gettime(CLOCK_MONOTONIC, &now)) return 0;
    long long waited = (long long)(RedisModule_MonotonicMicroseconds() - job->queued_us);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000 - waited;
}

int jobs_hand_out(RedisModuleCtx *ctx, int ready, JobsCapacity *capacity) {
    Job *job = queues_take(ready, capacity);
    if (!job) return 0;
    if (job->id) start(job);
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    RedisModule_ReplyWithLongLong(ctx, (long long)job->id);
    RedisModule_ReplyWithCString(ctx, job->class->kind);
    RedisModule_ReplyWithLongLong(ctx, job->attempt);
    RedisModule_ReplyWithLongLong(ctx, job_wait_left_ms(job->deadline_us));
    RedisModule_ReplyWithLongLong(ctx, came_us(job));
    int count = job->class->emit ? job->class->emit(ctx, job->data) : 0;
    RedisModule_ReplySetArrayLength(ctx, 5 + count);
    if (!job->id) job_free(job);
    return 1;
}

/* 1: the class of the job allows QA.DONE with this status. 0: the status is special (TENSORS, DAG or TIMEDOUT), and the
 * class does not have it in `statuses`. */
static int may_end_with(const Job *job, JobStatus status) {
    unsigned special = JOB_STATUS(JOB_TENSORS) | JOB_STATUS(JOB_DAG) | JOB_STATUS(JOB_TIMEDOUT);
    return !(JOB_STATUS(status) & special & ~job->class->statuses);
}

int jobs_done(RedisModuleCtx *ctx, uint64_t id, JobResult *result) {
    if (cancelled_remove(id)) return 0;
    Job *job = RedisModule_DictGetC(by_id, &id, sizeof id, NULL);
    if (!job || job->state != JOB_RUNNING) return 0;
    int has_value = (result->status == JOB_OK || result->status == JOB_OVERRIDE) && result->argc;
    size_t length;
    const char *buffer = has_value ? RedisModule_StringPtrLen(result->argv[0], &length) : NULL;
    if (!may_end_with(job, result->status) || (has_value && !resp_valid(buffer, length, 0))) {
        end_failed(ctx, job, CAUSE_ANSWERED, "PROTOCOL worker sent an invalid reply");
        return 1;
    }
    end(ctx, job, result);
    return 1;
}

/* ---- The death of a worker ---- */

/* The loop starts with the job that was handed out last. Each job goes to the front of its queue. So after the loop,
 * the job that was handed out first is first in its queue again. */
void jobs_worker_lost(RedisModuleCtx *ctx, int innocent) {
    cancelled_clear();
    while (running) {
        Job *job = running;
        if (job->attempt > 1 && !innocent) {
            end_failed(ctx, job, CAUSE_LOST, "WORKERLOST worker died twice on this job");
            continue;
        }
        unlink_running(job);
        if (!innocent) job->attempt++;
        job->stats->retried++;
        if (!job->client) disarm(job);
        job->state = JOB_QUEUED;
        job->started_us = 0;
        queues_again(job, innocent);
    }
    worker->wake();
}

int jobs_on_load(RedisModuleCtx *ctx) {
    by_id = RedisModule_CreateDict(NULL);
    queues_on_load();
    cancelled_on_load();
    clients_on_load(on_left);
    return REDISMODULE_OK;
}

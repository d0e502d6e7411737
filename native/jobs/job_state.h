/* The state of a job, for the files of native/jobs. job.h defines the words: class, notice, hand out, retry. */
#pragma once

#include "jobs/job.h"
#include "jobs/job_stats.h"
#include "jobs/order.h"
#include "jobs/queue.h"

typedef enum { JOB_QUEUED, JOB_RUNNING, JOB_ENDED } JobState;

typedef struct Job {
    QueueNode node; /* first, so that a pointer to the node is a pointer to the job */
    uint64_t id;    /* 0: a notice */
    const JobClass *class;
    void *data;
    JobState state;
    Queue *queue;
    Order *order; /* the order (order.h) of the job's registration if the class has in_order; else NULL. Until the job
                   * may run, `queue` is the queue of this order */
    JobKindStats *stats;
    int attempt; /* 1: the first attempt; 2: the worker died during the first attempt */
    int retry;   /* 1: the job is in the queue of retries, because the worker died while the job ran */
    RedisModuleBlockedClient *client;
    RedisModuleString *awaited; /* the key on which a client that tracks keys is blocked; else NULL */
    int is_signalled; /* 1: the module has signalled `awaited` as ready, and the timer `unserved` is running */
    RedisModuleTimerID unserved;
    QueuePlace place;     /* its place in the fair queue */
    long long timeout_ms; /* 0: no timeout */
    uint64_t deadline_us; /* 0: the job has no deadline, or no deadline yet */
    RedisModuleTimerID timer;
    uint64_t queued_us;
    uint64_t started_us; /* 0: it has not been handed out */
    struct Job *next_running;
    struct Job *previous_running;
    JobResult result;
    const char *refusal; /* an error line from finish(); the client gets it instead of the result */
    char *error;         /* the memory of result.error */
} Job;

/* Returns a new job, which owns `data` and is in no queue yet. `timeout_ms` has the same meaning as in
 * jobs_submit_blocking (jobs.h). */
Job *job_new(const JobClass *class, void *data, long long timeout_ms);
void job_free(Job *job);

/* Stores a copy of the result in the job, and the time that the job has run. */
void job_set_result(Job *job, const JobResult *result);

/* The state of a job, for the files of this room. */
#ifndef QA_JOB_STATE_H
#define QA_JOB_STATE_H

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
    Order *order; /* of a class with in_order, else NULL; `queue` is the order's own queue until the job may run */
    JobKindStats *stats;
    int attempt;
    int retry; /* it is in the queue of jobs whose worker has died */
    RedisModuleBlockedClient *client;
    RedisModuleString *awaited; /* the key on which a client that tracks keys is blocked; else NULL */
    int is_signalled;           /* the module has signalled that key, and `unserved` is running */
    RedisModuleTimerID unserved;
    QueuePlace place;     /* its flow in the fair queue */
    long long timeout_ms; /* 0: no timeout */
    uint64_t deadline_us; /* 0: no deadline yet, or none at all */
    RedisModuleTimerID timer;
    uint64_t queued_us;
    uint64_t started_us; /* 0: it has not been handed out */
    struct Job *next_running;
    struct Job *previous_running;
    JobResult result;
    const char *refusal; /* an error line of finish(), which the client gets instead of the result */
    char *error;         /* owns result.error */
} Job;

/* `timeout_ms` as in jobs_submit_blocking. */
Job *job_new(const JobClass *class, void *data, long long timeout_ms);
void job_free(Job *job);

/* Keeps a copy of the result. */
void job_set_result(Job *job, const JobResult *result);

#endif

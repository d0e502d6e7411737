/* What a job is: its class, how it ended, and the usual replies to its client. */
#ifndef QA_JOB_H
#define QA_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "server/module_api.h"

/* How a job ended. The worker says so with the status word of QA.DONE. */
typedef enum { JOB_OK, JOB_OVERRIDE, JOB_SKIP, JOB_TENSORS, JOB_DAG, JOB_TIMEDOUT, JOB_FAILED } JobStatus;

/* Why a job ended. */
typedef enum {
    CAUSE_ANSWERED,    /* the worker answered */
    CAUSE_DEADLINE,    /* its deadline passed */
    CAUSE_LOST,        /* two workers died on it */
    CAUSE_CLIENT_GONE, /* its client left */
    CAUSE_ABORTED,     /* its registration was removed with ABORTPENDING, or the worker aborted its execution */
    CAUSE_PUSHED_OUT   /* the queue was full, and another user had fewer jobs in it */
} JobCause;

typedef struct JobResult {
    JobStatus status;
    RedisModuleString **argv; /* OK, OVERRIDE: 0 or 1 RESP value; TENSORS, DAG: see the worker protocol; else empty */
    int argc;
    const char *error; /* FAILED: one line that starts with an error code; else NULL */
    JobCause cause;
    long long run_us; /* the time since the job was handed out; 0: it never ran */
} JobResult;

/* Only jobs of a class that lists them may end with TENSORS, DAG or TIMEDOUT. */
#define JOB_STATUS(status) (1u << (status))

typedef struct JobClass {
    const char *kind; /* as in docs/worker-protocol.md */
    /* Writes the arguments of the job as reply elements and returns their number. A retry calls it again. */
    int (*emit)(RedisModuleCtx *ctx, void *data);
    /* The job ended, for any cause. It runs once, in a command or timer context that may write and replicate keys. NULL
     * lets the client's reply follow `result`: the RESP value (OK, OVERRIDE), the error (FAILED), +OK (TENSORS) or
     * +TIMEDOUT. Otherwise it returns an error line for the client, in static memory or in memory that the job owns.
     * May be NULL. */
    const char *(*finish)(RedisModuleCtx *ctx, void *data, const JobResult *result);
    /* Writes the client's reply, in the client's context, after finish. NULL: job_default_reply. */
    void (*reply)(RedisModuleCtx *ctx, void *data, const JobResult *result);
    void (*free)(void *data);
    /* The key whose value the client waits for. A client that tracks keys is registered as a reader of this key when
     * the job ends, because the function's own write has already invalidated the miss. NULL: the class has no such key.
     */
    RedisModuleString *(*awaited)(void *data);
    /* The id of the registration that the job belongs to. NULL: jobs of this class belong to no registration. */
    RedisModuleString *(*registration)(void *data);
    /* The cost of the job for the models, in sentences. It counts against the turn of its user, and against the limit
     * of what the worker has of this user. NULL, or 0: no model works for the job, or the job waits in the worker for
     * other jobs. */
    uint32_t (*cost)(void *data);
    int of_user;       /* runs a user function: it has its own queue, so that other jobs never wait behind it */
    int of_model;      /* runs models of clients: it has its own queue, so that questions never wait behind it */
    int in_order;      /* the jobs of one registration with waiting clients run one after the other */
    int with_events;   /* a notice in the queue of events: a full queue drops it */
    int before_ready;  /* may be handed out before QA.READY */
    int unmeasured;    /* its time is not in the slow log, because the job asks or waits for other jobs */
    int queue_timeout; /* the client's timeout counts while the job is queued; then `qa.job-timeout-ms` counts */
    unsigned statuses; /* the JOB_STATUS bits of TENSORS, DAG and TIMEDOUT that its jobs may end with */
} JobClass;

/* The reply to the client of a class without `reply`. */
void job_default_reply(RedisModuleCtx *ctx, const JobResult *result);

/* The `reply` of a class whose client gets +OK or the error. */
void job_ok_reply(RedisModuleCtx *ctx, void *data, const JobResult *result);

/* For a class with `queue_timeout`. 1: the client's TIMEOUT passed before the job started. */
int job_timed_out(const JobResult *result);
/* The time until `until_us`, at least 1 ms. 0: `until_us` is 0, because the client gave no TIMEOUT. */
long long job_wait_left_ms(uint64_t until_us);

#endif

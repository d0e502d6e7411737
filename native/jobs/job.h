/* The description of a job: its class, how it ended, and the usual replies to its client. Words of this folder:
 * - A job is a piece of work for the worker. Its kind is the word that tells the worker what to do, such as `trigger`
 *   (docs/worker-protocol.md). Its class (JobClass) tells the module how to handle jobs of this kind.
 * - A notice is a job with id 0. The worker gets a notice once and does not answer it.
 * - A link is a connection from the worker to the module. The worker fetches jobs over a link with QA.NEXT: the module
 *   hands out the jobs.
 * - A function is qa-cluster's own function or a user function, from a user's script. A registration says which event,
 *   trigger or stream calls a function (functions/registration.h).
 * - A retry is the second attempt of a job whose worker has died. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/module_api.h"

/* How a job ended: the status word of QA.DONE (docs/worker-protocol.md). */
typedef enum { JOB_OK, JOB_OVERRIDE, JOB_SKIP, JOB_TENSORS, JOB_DAG, JOB_TIMEDOUT, JOB_FAILED } JobStatus;

/* Why a job ended. */
typedef enum {
    CAUSE_ANSWERED,    /* the worker answered */
    CAUSE_DEADLINE,    /* its deadline passed */
    CAUSE_LOST,        /* the worker died during the first attempt, and the next worker died during the retry */
    CAUSE_CLIENT_GONE, /* its client left */
    CAUSE_ABORTED,     /* its registration was removed with ABORTPENDING, or the worker aborted its execution */
    CAUSE_PUSHED_OUT   /* the queue was full, and a user with fewer queued jobs needed the space */
} JobCause;

typedef struct JobResult {
    JobStatus status;
    RedisModuleString *
        *argv; /* OK, OVERRIDE: 0 or 1 RESP value; TENSORS, DAG: see docs/worker-protocol.md; other statuses: empty */
    int argc;
    const char *error; /* FAILED: one line that starts with an error code; other statuses: NULL */
    JobCause cause;
    long long run_us; /* the time in microseconds since the job was handed out; 0: it was never handed out */
} JobResult;

/* The bit of a status in JobClass.statuses. */
#define JOB_STATUS(status) (1u << (status))

typedef struct JobClass {
    const char *kind; /* the kind of these jobs in docs/worker-protocol.md */
    /* Writes the arguments of the job as elements of the reply to QA.NEXT, and returns their number. Called again for a
     * retry. */
    int (*emit)(RedisModuleCtx *ctx, void *data);
    /* Called once, when the job has ended for any cause. `ctx` is the context of a command or a timer, and may write
     * and replicate keys. May be NULL.
     * Returns NULL if the client gets the reply for `result`: the RESP value (OK, OVERRIDE), the error (FAILED), +OK
     * (TENSORS) or +TIMEDOUT. Otherwise returns an error line for the client. The line is in static memory, or in
     * memory that the job owns. */
    const char *(*finish)(RedisModuleCtx *ctx, void *data, const JobResult *result);
    /* Writes the client's reply, in the client's context, after finish. NULL: job_default_reply writes the reply. */
    void (*reply)(RedisModuleCtx *ctx, void *data, const JobResult *result);
    void (*free)(void *data);
    /* Returns the missing key that the client has read. If the client tracks keys (CLIENT TRACKING), the server records
     * the client again as a reader of this key when the job ends. This is necessary, because the function's write of
     * the key has ended the first record. NULL: jobs of this class have no such key. */
    RedisModuleString *(*awaited)(void *data);
    /* Returns the id of the registration of the job. NULL: jobs of this class have no registration. */
    RedisModuleString *(*registration)(void *data);
    /* Returns the cost of the job for the models, in sentences. The cost decides how often the user of the job gets a
     * turn in the queue. It also counts against the limit for the user's jobs in the worker (QueueLimits). NULL or 0:
     * no model runs for the job, or the job only waits for other jobs; the job counts as 1 for turns. */
    uint32_t (*cost)(void *data);
    int of_user;  /* 1: runs a user function; these jobs have their own queue, so other jobs never wait for them */
    int of_model; /* 1: runs a model for a client; these jobs have their own queue, so questions never wait for them */
    int in_order; /* 1: for each registration, its jobs with a waiting client run one at a time */
    int with_events;   /* 1: notices of this class enter the queue of events (queues.h) */
    int before_ready;  /* 1: may be handed out before the worker has called QA.READY */
    int unmeasured;    /* 1: the slow log ignores these jobs, because they only ask about executions and scripts, or
                        * wait for the end of an execution */
    int queue_timeout; /* 1: the client's TIMEOUT limits only the time in the queue; `qa.job-timeout-ms` limits the time
                        * after the job was handed out */
    unsigned statuses; /* JOB_STATUS bits: which of TENSORS, DAG and TIMEDOUT its jobs may end with */
} JobClass;

/* Replies to the client of a job whose class has no `reply`. */
void job_default_reply(RedisModuleCtx *ctx, const JobResult *result);

/* The `reply` of a class whose client gets +OK or the error. */
void job_ok_reply(RedisModuleCtx *ctx, void *data, const JobResult *result);

/* For a class with `queue_timeout`. 1: the client's TIMEOUT passed before the job started. 0: the job ended in a
 * different way. */
int job_timed_out(const JobResult *result);
/* Returns the milliseconds until `until_us`, a time of RedisModule_MonotonicMicroseconds. The result is at least 1,
 * even if the time has passed. 0: `until_us` is 0, because the client gave no TIMEOUT. */
long long job_wait_left_ms(uint64_t until_us);

/* Jobs: what a shard asks of its worker, and the clients that wait for it.
 *
 * Everything here runs on the server's main thread. A job owns its data; a blocked client belongs to exactly one job.
 * The command files (cmd_model.c, cmd_rg.c, hook.c) create jobs and describe them by a JobClass; qa_commands.c hands
 * them to the worker and brings their results back; jobs.c owns their lives: queue, deadline, retry, cancellation. Jobs
 * reach the worker through JobsWorker: this room knows nothing of the rooms above it. */
#ifndef QA_JOBS_H
#define QA_JOBS_H

#include <stddef.h>
#include <stdint.h>

#include "server/module_api.h"

typedef struct Job Job;

/* How a job ended. `argv` are the arguments of QA.DONE after the status word. */
typedef enum { JOB_OK, JOB_OVERRIDE, JOB_SKIP, JOB_TENSORS, JOB_DAG, JOB_TIMEDOUT, JOB_FAILED } JobStatus;

/* Why it ended: the worker answered; its deadline passed; two workers died on it; its client left; a removal of its
 * registration ended all its jobs; the queue was full, and another user had less in it. */
typedef enum {
    CAUSE_ANSWERED,
    CAUSE_DEADLINE,
    CAUSE_LOST,
    CAUSE_CLIENT_GONE,
    CAUSE_ABORTED,
    CAUSE_PUSHED_OUT
} JobCause;

typedef struct JobResult {
    JobStatus status;
    RedisModuleString **argv; /* OK, OVERRIDE: 0 or 1 RESP string; TENSORS, DAG: what the protocol says; else none */
    int argc;
    const char *error; /* FAILED: one line that begins with a code; else NULL */
    JobCause cause;
    long long run_us; /* from its handing out to its end; 0 when it never ran */
} JobResult;

/* Only jobs of a class that names them may end with TENSORS, DAG or TIMEDOUT. */
#define JOB_STATUS(status) (1u << (status))

typedef struct JobClass {
    const char *kind; /* as in docs/worker-protocol.md */
    /* Writes the job's arguments as reply elements; returns how many. May be called twice (retry). */
    int (*emit)(RedisModuleCtx *ctx, void *data);
    /* The job ended, for whatever reason. Runs once, in a command or timer context in which keys may be written and
     * replicated. Returns NULL to let the client's reply follow `result` (OK/OVERRIDE: the RESP value; FAILED: the
     * error; TENSORS: +OK; TIMEDOUT: +TIMEDOUT), or an error line of static or job-owned memory that the client gets
     * instead. May be NULL. */
    const char *(*finish)(RedisModuleCtx *ctx, void *data, const JobResult *result);
    /* Writes the client's reply itself, in the client's context, after finish. NULL: the default above. */
    void (*reply)(RedisModuleCtx *ctx, void *data, const JobResult *result);
    void (*free)(void *data);
    /* The key whose value the client waits for. When the job has ended, a client that tracks keys is noted as the key's
     * reader: the function's own write has ended what began with the miss. NULL: the class has none. */
    RedisModuleString *(*awaited)(void *data);
    /* The id of the registration that the job belongs to. NULL: it belongs to none. */
    RedisModuleString *(*registration)(void *data);
    /* How many sentences the models read for it, or what takes as long, at least 1: what it takes of its user's turn,
     * and what the worker then has of this user. NULL, or 0: no model works for it, or it waits there for others. */
    uint32_t (*cost)(void *data);
    int of_user;       /* runs a user's function: it waits in a lane of its own, so that others never wait behind it */
    int in_order;      /* jobs of one registration with waiting clients run one after the other */
    int with_events;   /* a notice that waits with the events; too many of them drop it */
    int before_ready;  /* may be handed out before QA.READY */
    int unmeasured;    /* it asks or waits for other jobs: the slow log has these, and not its time */
    int queue_timeout; /* the timeout counts while the job waits; once handed out, it has `qa.job-timeout-ms` */
    unsigned statuses; /* JOB_STATUS of TENSORS, DAG, TIMEDOUT, as far as its jobs may end so */
} JobClass;

/* Blocks the calling client and queues a job for it. On any refusal (queue full, no worker configured, blocking not
 * allowed in MULTI, Lua or a deny-blocking client, or by the server) replies itself, with the error or as the class
 * does, frees `data` and returns 0; 1 when the job is queued. `timeout_ms` 0 means the default of `qa.job-timeout-ms`;
 * negative: no deadline. */
int jobs_submit_blocking(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms);

/* NULL, or the error that refuses every new job of a client, because there can be no worker. */
const char *jobs_refusal(void);

/* Queues a job that no client waits for. Returns 0 (and frees `data`) when the queue for such jobs is full. Its timeout
 * counts from its handing out: such jobs may wait for long. */
int jobs_submit(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms);

/* Queues a notice, a job with id 0: the worker gets it once and returns no result (model.drop, unregister, message,
 * cancel). Returns 0 (and frees `data`) when too many of them wait. */
int jobs_notify(const JobClass *class, void *data);

/* Ends all jobs of a registration with this error; the worker gets a notice to stop working on those that it has. Needs
 * a context that may write keys. */
void jobs_abort(RedisModuleCtx *ctx, RedisModuleString *registration, const char *error);

/* The reply a job's client gets when its class has no `reply` of its own. */
void jobs_default_reply(RedisModuleCtx *ctx, const JobResult *result);

/* The `reply` of a class whose client gets +OK, or the error. */
void jobs_ok_reply(RedisModuleCtx *ctx, void *data, const JobResult *result);

/* For a class with `queue_timeout`: did the client's TIMEOUT pass before the job had begun? */
int jobs_timed_out(const JobResult *result);
/* The time left until `until_us`, at least 1 ms; 0 when that is 0: the client gave no TIMEOUT. */
long long jobs_wait_left_ms(uint64_t until_us);

/* ---- For the parts that hand out jobs, and for those that show statistics ---- */

enum { JOB_KINDS = 10, JOB_LATENCY_BUCKETS = 33 };

/* Bucket b counts durations d (in microseconds) with 2^(b-1) <= d < 2^b; bucket 0: less than 1. */
typedef struct JobKindStats {
    unsigned long long submitted, ok, overridden, skipped, failed, expired, lost, client_gone, aborted, refused,
        retried;
    unsigned long long queue_us[JOB_LATENCY_BUCKETS], run_us[JOB_LATENCY_BUCKETS];
} JobKindStats;

int jobs_on_load(RedisModuleCtx *ctx);

/* The worker, as far as jobs need it. */
typedef struct JobsWorker {
    const char *(*refusal)(void);                   /* NULL, or an error line: why there can be no worker */
    void (*wake)(void);                             /* jobs are waiting; may be called when none is */
    void (*kill)(const char *reason, int innocent); /* it did not obey; returns at once, jobs_worker_lost follows */
} JobsWorker;

/* Call it once, at load time, before the first job. `worker` must live as long as the module. */
void jobs_attach(const JobsWorker *worker);

/* How many jobs the worker takes now: of all kinds (0: notices only), and, of these, users' functions that clients wait
 * for, and users' functions that nobody waits for. */
typedef struct JobsRoom {
    long long all, functions, background;
} JobsRoom;

/* Is there a job to hand out? `ready` 0: one that may be handed out before QA.READY. */
int jobs_available(int ready, const JobsRoom *room);

/* QA.NEXT was called. */
void jobs_asked(void);

/* Takes the next job for which there is room, counts it, and writes it as one array element of the calling link's
 * reply. Returns 0 when there is none. */
int jobs_hand_out(RedisModuleCtx *ctx, int ready, JobsRoom *room);

/* QA.DONE: 0 when no such job is running. */
int jobs_done(RedisModuleCtx *ctx, uint64_t id, JobResult *result);

/* The worker died: running jobs go back to the queue, or fail the second time. `innocent`: it was killed for a job that
 * had been cancelled before, so this death does not count against the others. Needs a context that may write keys. */
void jobs_worker_lost(RedisModuleCtx *ctx, int innocent);

size_t jobs_queued_clients(void);
size_t jobs_queued_bulk(void); /* of these, those of clients that do bulk work */
/* Users that have jobs for models, or had some in the last seconds. */
size_t jobs_users(void);
/* The cost of the jobs for models that the worker has. */
size_t jobs_ahead(void);
unsigned long long jobs_pushed_out(void);
size_t jobs_queued_events(void);
size_t jobs_queued_notices(void);
size_t jobs_running(void);
/* NULL beyond the last kind. */
const JobKindStats *jobs_kind_stats(int index, const char **kind);

#endif

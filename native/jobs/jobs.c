/* The lives of jobs. A job is in one place at a time: in a lane, kept by its order, in the list of running jobs, or
 * ended and waiting for its client's reply. by_id holds the queued and running ones, by_client those of clients that
 * wait.
 *
 * end() is the only way out. It takes the job from where it is, lets the class finish it, and hands it to the
 * unblocking of its client, whose JOB_Free gives up the memory; it frees a job without a client at once. So a later
 * timer or disconnection finds no job, and a job cannot end twice.
 *
 * A running job that ends without the worker's answer leaves a tombstone, because the worker may still work on it. The
 * tombstone holds the job's place in its order. It goes when the worker says that the job is done, when the worker
 * dies, or when the time to stop is over; in the last case the module kills the worker. */
#include "jobs/jobs.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jobs/flows.h"
#include "jobs/order.h"
#include "jobs/queue.h"
#include "server/caller.h"
#include "server/config.h"
#include "server/resp_reply.h"
#include "server/server.h"

typedef enum { JOB_QUEUED, JOB_RUNNING, JOB_ENDED } JobState;

struct Job {
    QueueNode node; /* first, so that a node is its job */
    uint64_t id;    /* 0: a notice */
    const JobClass *class;
    void *data;
    JobState state;
    Queue *lane;
    Order *order; /* of a class with in_order, else NULL; `lane` is its queue until the job may go */
    int kind;
    int attempt;
    int suspect; /* waits among those whose worker has died */
    RedisModuleBlockedClient *client;
    RedisModuleString *awaited; /* the key that a client that tracks keys waits on; else NULL */
    int is_signalled;           /* that key is said to be ready: the server calls JOB_Read, or `unserved` fires */
    RedisModuleTimerID unserved;
    QueuePlace place;     /* whose turn it takes */
    long long timeout_ms; /* 0: none */
    uint64_t deadline_us; /* 0: none (yet) */
    RedisModuleTimerID timer;
    uint64_t queued_us;
    uint64_t started_us;
    Job *next_running;
    Job *previous_running;
    JobResult result;
    const char *refusal; /* an error line of finish(), which the client gets instead of the result */
    char *error;         /* owns result.error */
};

/* A running job that has ended without an answer; the worker has until the timer fires to stop working on it. */
typedef struct Tombstone {
    uint64_t id;
    RedisModuleTimerID timer;
    int was_paused;
    uint64_t told_at;   /* calls of QA.NEXT when the worker got the cancel notice; 0: not yet */
    long long later_ms; /* how long it may go on after that (the client has left, the deadline stands) */
    Order *order;       /* whose next job must wait until the worker has stopped working on this one */
    Queue *lane;
    QueueHold hold; /* what its user has out as long as the worker may work on it */
} Tombstone;

/* In the order of service; before QA.READY the worker gets only the first two. Then all but notices take turns, as far
 * as the worker has room for them. The last two are those of users' functions, with a client and without. */
enum { LANE_NOTICES, LANE_EARLY, LANE_CLIENTS, LANE_EVENTS, LANE_FUNCTIONS, LANE_BACKGROUND, LANE_COUNT };

/* One of the jobs that a worker had when it died may have killed it. They come before others, and one after the other,
 * or the one that kills would take the others along a second time. A long one keeps the next waiting for so long only.
 */
enum { APART_MS = 200 };

enum { MAX_ERROR = 64 * 1024, MAX_LATE_MS = 86400000 };

/* A user that has asked nothing for so long does not limit the others any more. A job that is larger than MAX_HOLD
 * counts as this much of what the worker has, for it works on it in parts. */
enum { LINGER_MS = 10000, MAX_HOLD = 16, MAX_COST = 65536 };

static const char *const KINDS[JOB_KINDS] = {"script",     "trigger",     "event",     "onregistered", "command",
                                             "model.load", "script.load", "model.run", "dag.run",      "other"};
static JobKindStats stats[JOB_KINDS];

static Queue *lanes[LANE_COUNT];
static Queue *suspects[LANE_COUNT]; /* by the lane that they are of, whose room they need */
static const Job *tried;            /* the suspect that was handed out last, as long as it runs */
static int lane_turn, suspect_turn;
static uint64_t next_id = 1;
static RedisModuleDict *by_id;     /* job id -> Job, queued or running */
static RedisModuleDict *by_client; /* blocked client pointer -> Job */
static RedisModuleDict *tombstones;
static Job *running;
static size_t running_count;
static uint64_t asked; /* calls of QA.NEXT */
static unsigned long long pushed_out;
static const JobsWorker *worker;

int jobs_on_load(RedisModuleCtx *ctx) {
    (void)ctx;
    QueueAllocator allocator = {RedisModule_Alloc, RedisModule_Free};
    for (int i = 0; i < LANE_COUNT; i++) {
        int of_clients = i == LANE_EARLY || i == LANE_CLIENTS || i == LANE_FUNCTIONS;
        lanes[i] = queue_new(allocator, of_clients ? QUEUE_LEVELS : 1);
        suspects[i] = queue_new(allocator, 1);
    }
    by_id = RedisModule_CreateDict(NULL);
    by_client = RedisModule_CreateDict(NULL);
    tombstones = RedisModule_CreateDict(NULL);
    return REDISMODULE_OK;
}

void jobs_attach(const JobsWorker *to) { worker = to; }

const char *jobs_refusal(void) { return worker->refusal(); }

/* ---- Statistics ---- */

static int kind_of(const JobClass *class) {
    for (int i = 0; i < JOB_KINDS - 1; i++)
        if (!strcmp(KINDS[i], class->kind)) return i;
    return JOB_KINDS - 1;
}

static void record(unsigned long long *buckets, uint64_t us) {
    int bucket = us ? 64 - __builtin_clzll(us) : 0;
    buckets[bucket < JOB_LATENCY_BUCKETS ? bucket : JOB_LATENCY_BUCKETS - 1]++;
}

static void count_end(const Job *job) {
    JobKindStats *kind = &stats[job->kind];
    switch (job->result.cause) {
    case CAUSE_DEADLINE: kind->expired++; return;
    case CAUSE_LOST: kind->lost++; return;
    case CAUSE_CLIENT_GONE: kind->client_gone++; return;
    case CAUSE_ABORTED: kind->aborted++; return;
    case CAUSE_PUSHED_OUT: kind->refused++; return;
    case CAUSE_ANSWERED: break;
    }
    switch (job->result.status) {
    case JOB_OVERRIDE: kind->overridden++; break;
    case JOB_SKIP: kind->skipped++; break;
    case JOB_FAILED: kind->failed++; break;
    case JOB_TIMEDOUT: kind->expired++; break;
    default: kind->ok++; break;
    }
}

const JobKindStats *jobs_kind_stats(int index, const char **kind) {
    if (index >= JOB_KINDS) return NULL;
    *kind = KINDS[index];
    return &stats[index];
}

/* Also those that wait to be tried again. */
static size_t queued_in(int lane) { return queue_length(lanes[lane]) + queue_length(suspects[lane]); }

static size_t queued_functions(void) { return queued_in(LANE_FUNCTIONS) + order_kept(); }

size_t jobs_queued_clients(void) { return queued_in(LANE_EARLY) + queued_in(LANE_CLIENTS) + queued_functions(); }

size_t jobs_queued_bulk(void) {
    return queue_class_length(lanes[LANE_EARLY], QUEUE_BULK) + queue_class_length(lanes[LANE_CLIENTS], QUEUE_BULK) +
           queue_class_length(lanes[LANE_FUNCTIONS], QUEUE_BULK);
}

enum { LEVEL_OF_USERS = 2 };

size_t jobs_users(void) { return queue_flows(lanes[LANE_CLIENTS], LEVEL_OF_USERS); }
size_t jobs_ahead(void) { return queue_out(lanes[LANE_CLIENTS]); }
unsigned long long jobs_pushed_out(void) { return pushed_out; }
size_t jobs_queued_events(void) { return queued_in(LANE_EVENTS) + queued_in(LANE_BACKGROUND); }
size_t jobs_queued_notices(void) { return queue_length(lanes[LANE_NOTICES]); }
size_t jobs_running(void) { return running_count; }

/* ---- A job's life ---- */

static void job_free(Job *job) {
    if (job->is_signalled) RedisModule_StopTimer(server_ctx(), job->unserved, NULL);
    if (job->awaited) RedisModule_FreeString(NULL, job->awaited);
    if (job->class->free) job->class->free(job->data);
    for (int i = 0; i < job->result.argc; i++) RedisModule_FreeString(NULL, job->result.argv[i]);
    RedisModule_Free(job->result.argv);
    RedisModule_Free(job->error);
    RedisModule_Free(job);
}

static void JOB_Free(RedisModuleCtx *ctx, void *data) {
    (void)ctx;
    job_free(data);
}

void jobs_default_reply(RedisModuleCtx *ctx, const JobResult *result) {
    if (result->status == JOB_FAILED) {
        RedisModule_ReplyWithError(ctx, result->error);
    } else if ((result->status == JOB_OK || result->status == JOB_OVERRIDE) && result->argc) {
        size_t length;
        const char *buffer = RedisModule_StringPtrLen(result->argv[0], &length);
        resp_reply(ctx, buffer, length, 0);
    } else if (result->status == JOB_TIMEDOUT) {
        RedisModule_ReplyWithSimpleString(ctx, "TIMEDOUT");
    } else {
        RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
}

int jobs_timed_out(const JobResult *result) {
    return result->status == JOB_TIMEDOUT || (result->cause == CAUSE_DEADLINE && result->run_us == 0);
}

long long jobs_wait_left_ms(uint64_t until_us) {
    if (!until_us) return 0;
    long long left = ((long long)until_us - (long long)RedisModule_MonotonicMicroseconds()) / 1000;
    return left < 1 ? 1 : left;
}

void jobs_ok_reply(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    (void)data;
    if (result->status == JOB_FAILED) RedisModule_ReplyWithError(ctx, result->error);
    else RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int JOB_Reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    Job *job = RedisModule_GetBlockedClientPrivateData(ctx);
    if (job->refusal) RedisModule_ReplyWithError(ctx, job->refusal);
    else if (job->class->reply) job->class->reply(ctx, job->data, &job->result);
    else jobs_default_reply(ctx, &job->result);
    return REDISMODULE_OK;
}

/* ---- Clients that track keys ----
 *
 * The server notes the keys of a read for the client that it serves at that time, and a module's reply to a waiting
 * client is none of these times, unless the client waits on a key that becomes ready. So where servers can (Redis from
 * 7.2, Valkey), a client that tracks keys waits on the key that it has missed. Its job ends with the signal that the
 * key is ready, the server calls JOB_Read with this client as the one that it serves, and only then the client is let
 * go.
 *
 * The server frees such a job as soon as its client waits no more, whoever ended the waiting. */

/* The key is ready, perhaps for another client's job. The client gets its reply like those that wait on no key: if it
 * got it here, the server would still take it for a waiting one for a while. */
static int JOB_Read(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    Job *job = RedisModule_GetBlockedClientPrivateData(ctx);
    if (!job->is_signalled) return REDISMODULE_ERR;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "EXISTS", "s", job->awaited);
    if (reply) RedisModule_FreeCallReply(reply);
    RedisModule_StopTimer(server_ctx(), job->unserved, NULL);
    job->is_signalled = 0;
    RedisModule_UnblockClient(job->client, job);
    return REDISMODULE_ERR;
}

/* The server has not looked at the key, for whatever reason. */
static void JOB_Unserved(RedisModuleCtx *ctx, void *data) {
    (void)ctx;
    Job *job = data;
    job->is_signalled = 0;
    RedisModule_UnblockClient(job->client, job);
}

static void let_client_go(RedisModuleCtx *ctx, Job *job) {
    if (!job->awaited) {
        RedisModule_UnblockClient(job->client, job);
        return;
    }
    job->is_signalled = 1;
    job->unserved = RedisModule_CreateTimer(server_ctx(), 1, JOB_Unserved, job);
    RedisModule_SignalKeyAsReady(ctx, job->awaited);
}

static void unlink_running(Job *job) {
    if (job->previous_running) job->previous_running->next_running = job->next_running;
    else running = job->next_running;
    if (job->next_running) job->next_running->previous_running = job->previous_running;
    job->next_running = job->previous_running = NULL;
    running_count--;
    if (tried == job) tried = NULL;
}

static void disarm(Job *job) {
    if (job->deadline_us) RedisModule_StopTimer(server_ctx(), job->timer, NULL);
    job->deadline_us = 0;
}

static int lane_of(const Job *job) {
    int lane = 0;
    while (lane < LANE_COUNT - 1 && lanes[lane] != job->lane) lane++;
    return lane;
}

static int any_suspect(void) {
    for (int i = 0; i < LANE_COUNT; i++)
        if (queue_length(suspects[i])) return 1;
    return 0;
}

static void unqueue(Job *job) { queue_remove(job->suspect ? suspects[lane_of(job)] : job->lane, &job->node); }

/* A job that was in this lane and the first of its order has ended: the next one may go. */
static void let_next_go(Order *order, Queue *lane) {
    if (!order || lane == order_queue(order)) return;
    Job *next = (Job *)order_next(order);
    if (!next) return;
    next->lane = lane;
    queue_push(next->lane, &next->node, &next->place);
    worker->wake();
}

/* The worker no longer works on it, so another job of its user may go. */
static void release(Queue *lane, QueueHold *hold) {
    if (!hold->flow) return;
    queue_release(lane, hold);
    if (queue_length(lane)) worker->wake();
}

/* Copies what must last of `result`. After this the job is freed, or belongs to the unblocking of its client. */
static void end(RedisModuleCtx *ctx, Job *job, const JobResult *result) {
    disarm(job);
    if (job->state == JOB_QUEUED) {
        unqueue(job);
    } else {
        int was_tried = tried == job;
        unlink_running(job);
        release(job->lane, &job->node.hold);
        if (was_tried && any_suspect()) worker->wake();
    }
    RedisModule_DictDelC(by_id, &job->id, sizeof job->id, NULL);
    job->state = JOB_ENDED;
    job->result = *result;
    /* 0 says that it never ran, so the shortest run counts as one. */
    job->result.run_us = job->started_us ? (long long)(RedisModule_MonotonicMicroseconds() - job->started_us) + 1 : 0;
    if (result->error) {
        size_t length = strnlen(result->error, MAX_ERROR);
        job->error = RedisModule_Alloc(length + 1);
        memcpy(job->error, result->error, length);
        job->error[length] = '\0';
        for (char *at = job->error; *at; at++)
            if (*at == '\r' || *at == '\n') *at = ' ';
        job->result.error = job->error;
    }
    job->result.argv = result->argc ? RedisModule_Alloc((size_t)result->argc * sizeof *job->result.argv) : NULL;
    for (int i = 0; i < result->argc; i++) job->result.argv[i] = RedisModule_HoldString(NULL, result->argv[i]);
    count_end(job);
    if (job->started_us) record(stats[job->kind].run_us, (uint64_t)job->result.run_us);
    let_next_go(job->order, job->lane);
    if (job->class->finish) job->refusal = job->class->finish(ctx, job->data, &job->result);
    if (!job->client) {
        job_free(job);
        return;
    }
    RedisModule_DictDelC(by_client, &job->client, sizeof job->client, NULL);
    if (job->started_us && !job->class->unmeasured) RedisModule_BlockedClientMeasureTimeEnd(job->client);
    if (!job->awaited || result->cause != CAUSE_CLIENT_GONE) let_client_go(ctx, job);
}

static void end_failed(RedisModuleCtx *ctx, Job *job, JobCause cause, const char *error) {
    JobResult result = {.status = JOB_FAILED, .error = error, .cause = cause};
    end(ctx, job, &result);
}

/* ---- Cancelling ---- */

static int emit_cancel(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithLongLong(ctx, *(long long *)data);
    return 1;
}

/* The notice has been handed out: a worker whose event loop is not blocked will ask again. */
static void free_cancel(void *data) {
    uint64_t id = (uint64_t)*(long long *)data;
    Tombstone *tombstone = RedisModule_DictGetC(tombstones, &id, sizeof id, NULL);
    if (tombstone) tombstone->told_at = asked;
    RedisModule_Free(data);
}

static const JobClass CANCEL = {.kind = "cancel", .emit = emit_cancel, .free = free_cancel, .before_ready = 1};

static void on_grace_over(RedisModuleCtx *ctx, void *data) {
    Tombstone *tombstone = data;
    int paused = RedisModule_AvoidReplicaTraffic();
    if (paused || tombstone->was_paused) { /* its QA.DONE waits for the end of the pause, so the time begins there */
        tombstone->was_paused = paused;
        tombstone->timer = RedisModule_CreateTimer(ctx, config.cancel_grace_ms, on_grace_over, tombstone);
        return;
    }
    int heard = tombstone->told_at && asked > tombstone->told_at;
    if (heard && tombstone->later_ms > 0) {
        tombstone->timer = RedisModule_CreateTimer(ctx, tombstone->later_ms, on_grace_over, tombstone);
        tombstone->later_ms = 0;
        return;
    }
    char reason[128];
    snprintf(reason, sizeof reason, "has not %s job %llu within %lld ms",
             heard ? "stopped working on cancelled" : "asked for work, and so not heard of cancelled",
             (unsigned long long)tombstone->id, config.cancel_grace_ms);
    RedisModule_DictDelC(tombstones, &tombstone->id, sizeof tombstone->id, NULL);
    worker->kill(reason, 1);
    let_next_go(tombstone->order, tombstone->lane);
    release(tombstone->lane, &tombstone->hold);
    RedisModule_Free(tombstone);
}

/* Asks the worker to stop working on a running job that is about to end. The worker has the grace time to take the
 * notice and, if `left_ms` is positive, then that long to stop. */
static void cancel_running(Job *job, long long left_ms) {
    Tombstone *tombstone = RedisModule_Calloc(1, sizeof *tombstone);
    tombstone->id = job->id;
    tombstone->order = job->order;
    tombstone->lane = job->lane;
    job->order = NULL;
    tombstone->hold = job->node.hold;
    job->node.hold.flow = NULL;
    tombstone->later_ms = left_ms;
    tombstone->timer = RedisModule_CreateTimer(server_ctx(), config.cancel_grace_ms, on_grace_over, tombstone);
    RedisModule_DictSetC(tombstones, &tombstone->id, sizeof tombstone->id, tombstone);
    long long *id = RedisModule_Alloc(sizeof *id);
    *id = (long long)job->id;
    jobs_notify(&CANCEL, id);
}

static int bury(uint64_t id) {
    Tombstone *tombstone = NULL;
    if (RedisModule_DictDelC(tombstones, &id, sizeof id, &tombstone) != REDISMODULE_OK) return 0;
    RedisModule_StopTimer(server_ctx(), tombstone->timer, NULL);
    let_next_go(tombstone->order, tombstone->lane);
    release(tombstone->lane, &tombstone->hold);
    RedisModule_Free(tombstone);
    return 1;
}

static void JOB_Timeout(RedisModuleCtx *ctx, void *data) {
    Job *job = data;
    job->deadline_us = 0;
    uint64_t from = job->client ? job->queued_us : job->started_us;
    char error[128];
    snprintf(error, sizeof error, "DEADLINE job %s %lld ms, limit %lld ms", job->state == JOB_QUEUED ? "waited" : "ran",
             (long long)((RedisModule_MonotonicMicroseconds() - from) / 1000), job->timeout_ms);
    if (job->state == JOB_RUNNING) cancel_running(job, 0);
    end_failed(ctx, job, CAUSE_DEADLINE, error);
}

/* Its client waits no more. */
static void leave(RedisModuleCtx *ctx, Job *job) {
    if (job->state == JOB_RUNNING) {
        long long left = MAX_LATE_MS;
        uint64_t now = RedisModule_MonotonicMicroseconds();
        if (job->deadline_us) left = job->deadline_us > now ? (long long)((job->deadline_us - now) / 1000) : 0;
        cancel_running(job, left);
    }
    end_failed(ctx, job, CAUSE_CLIENT_GONE, "CANCELLED client left");
}

static void JOB_Disconnected(RedisModuleCtx *ctx, RedisModuleBlockedClient *client) {
    Job *job = RedisModule_DictGetC(by_client, &client, sizeof client, NULL);
    if (job) leave(ctx, job); /* else it has ended already, but its client left before it could read the reply */
}

/* The reply to a client that waits on a key: its job has ended, or CLIENT UNBLOCK has ended the waiting. */
static int JOB_Unblocked(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Job *job = RedisModule_GetBlockedClientPrivateData(ctx);
    if (job->state != JOB_ENDED) leave(ctx, job);
    return JOB_Reply(ctx, argv, argc);
}

void jobs_abort(RedisModuleCtx *ctx, RedisModuleString *registration, const char *error) {
    size_t count = 0, length;
    Job *job, **found = RedisModule_Alloc((RedisModule_DictSize(by_id) + 1) * sizeof *found);
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(by_id, "^", NULL, 0);
    while (RedisModule_DictNextC(iterator, &length, (void **)&job))
        if (job->class->registration && !RedisModule_StringCompare(job->class->registration(job->data), registration))
            found[count++] = job;
    RedisModule_DictIteratorStop(iterator);
    for (size_t i = 0; i < count; i++) {
        if (found[i]->state == JOB_RUNNING) cancel_running(found[i], 0);
        end_failed(ctx, found[i], CAUSE_ABORTED, error);
    }
    RedisModule_Free(found);
}

/* ---- Submitting ---- */

static void arm(Job *job) {
    if (!job->timeout_ms) return;
    job->deadline_us = RedisModule_MonotonicMicroseconds() + (uint64_t)job->timeout_ms * 1000;
    job->timer = RedisModule_CreateTimer(server_ctx(), job->timeout_ms, JOB_Timeout, job);
}

static Job *job_new(const JobClass *class, void *data, long long timeout_ms) {
    Job *job = RedisModule_Calloc(1, sizeof *job);
    job->class = class;
    job->data = data;
    job->attempt = 1;
    job->kind = kind_of(class);
    job->timeout_ms = timeout_ms < 0 ? 0 : timeout_ms ? timeout_ms : config.job_timeout_ms;
    job->queued_us = RedisModule_MonotonicMicroseconds();
    uint32_t cost = class->cost ? class->cost(data) : 0;
    if (cost > MAX_COST) cost = MAX_COST;
    job->node.cost = cost ? cost : 1;
    job->node.hold.cost = class->of_user ? 1 : cost > MAX_HOLD ? MAX_HOLD : cost;
    return job;
}

static void enqueue(Job *job, int lane) {
    job->lane = lanes[lane];
    job->state = JOB_QUEUED;
    job->id = next_id++;
    stats[job->kind].submitted++;
    RedisModule_DictSetC(by_id, &job->id, sizeof job->id, job);
    if (job->order && !order_enter(job->order, &job->node)) {
        job->lane = order_queue(job->order);
        return;
    }
    queue_push(job->lane, &job->node, &job->place);
    worker->wake();
}

static void refuse(RedisModuleCtx *ctx, const JobClass *class, void *data, const char *error) {
    stats[kind_of(class)].refused++;
    if (class->free) class->free(data);
    RedisModule_ReplyWithError(ctx, error);
}

/* Those that orders keep fill the queue, too. They go one after the other, whoever has sent them, so an order counts as
 * a user does. */
static QueueNode *kept_rival(const JobClass *class, void *data, Queue *lane, const QueuePlace *place) {
    size_t own = queue_flow_length(lane, place, LEVEL_OF_USERS);
    if (class->in_order) own += order_kept_of(class->registration(data));
    return order_rival(own);
}

/* The queue is full: the newest job of whoever has most in it makes place for one of a user that has less. Else a user
 * that fills the queue would keep the others out of it. */
static int make_place(RedisModuleCtx *ctx, const JobClass *class, void *data, Queue *lane, const QueuePlace *place,
                      size_t queued) {
    Job *rival = (Job *)queue_rival(lane, place);
    if (!rival && class->of_user) rival = (Job *)kept_rival(class, data, lane, place);
    if (!rival || !rival->client) return 0;
    char error[160];
    snprintf(error, sizeof error,
             "OVERLOADED queue is full: %zu jobs, limit %lld (qa.max-queue), and others have fewer in it, try again "
             "later",
             queued, config.max_queue);
    pushed_out++;
    end_failed(ctx, rival, CAUSE_PUSHED_OUT, error);
    return 1;
}

/* 0: the server lets this client wait for nothing, as Valkey those that have subscribed to something. */
static int block(RedisModuleCtx *ctx, Job *job) {
    if (job->class->awaited && RedisModule_BlockClientOnKeysWithFlags && RedisModule_SignalKeyAsReady &&
        caller_tracks_keys(ctx)) {
        job->awaited = RedisModule_CreateStringFromString(NULL, job->class->awaited(job->data));
        job->client = RedisModule_BlockClientOnKeysWithFlags(ctx, JOB_Read, JOB_Unblocked, JOB_Free, 0, &job->awaited,
                                                             1, job, REDISMODULE_BLOCK_UNBLOCK_DELETED);
    } else {
        job->client = RedisModule_BlockClient(ctx, JOB_Reply, NULL, JOB_Free, 0);
    }
    return job->client != NULL;
}

static void refuse_waiting(RedisModuleCtx *ctx, Job *job) {
    const char *error =
        "ERR this connection may not wait for a reply, as it is subscribed to something: use another one";
    JobResult result = {.status = JOB_FAILED, .error = error, .cause = CAUSE_ANSWERED};
    stats[job->kind].refused++;
    if (job->class->reply) job->class->reply(ctx, job->data, &result);
    else jobs_default_reply(ctx, &result);
    job_free(job);
}

int jobs_submit_blocking(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms) {
    char error[160];
    if (caller_blocking_denied(ctx)) {
        refuse(ctx, class, data, ERR_BLOCKING_DENIED);
        return 0;
    }
    if (jobs_refusal()) {
        refuse(ctx, class, data, jobs_refusal());
        return 0;
    }
    int lane = class->before_ready ? LANE_EARLY : class->of_user ? LANE_FUNCTIONS : LANE_CLIENTS;
    QueuePlace place = flows_of_caller(ctx);
    size_t queued = class->of_user ? queued_functions() : jobs_queued_clients() - queued_functions();
    if ((long long)queued >= config.max_queue && !make_place(ctx, class, data, lanes[lane], &place, queued)) {
        snprintf(error, sizeof error, "OVERLOADED queue is full: %zu jobs, limit %lld (qa.max-queue), try again later",
                 queued, config.max_queue);
        refuse(ctx, class, data, error);
        return 0;
    }
    Job *job = job_new(class, data, timeout_ms);
    job->place = place;
    if (!block(ctx, job)) {
        refuse_waiting(ctx, job);
        return 0;
    }
    RedisModule_SetDisconnectCallback(job->client, JOB_Disconnected);
    RedisModule_DictSetC(by_client, &job->client, sizeof job->client, job);
    if (class->in_order) job->order = order_find(class->registration(data));
    arm(job);
    enqueue(job, lane);
    return 1;
}

int jobs_submit(RedisModuleCtx *ctx, const JobClass *class, void *data, long long timeout_ms) {
    (void)ctx;
    int lane = class->before_ready ? LANE_EARLY : class->of_user ? LANE_BACKGROUND : LANE_EVENTS;
    if ((long long)queued_in(lane) >= config.max_events) {
        stats[kind_of(class)].refused++;
        if (class->free) class->free(data);
        return 0;
    }
    Job *job = job_new(class, data, timeout_ms);
    /* The registrations' events take turns: one with many must not keep those of others waiting. */
    if (lane == LANE_BACKGROUND && class->registration) job->place = flows_of_name(class->registration(data));
    enqueue(job, lane);
    return 1;
}

int jobs_notify(const JobClass *class, void *data) {
    Queue *lane = lanes[class->before_ready ? LANE_NOTICES : class->with_events ? LANE_EVENTS : LANE_CLIENTS];
    if ((long long)queue_length(lane) >= config.max_events) {
        if (class->free) class->free(data);
        return 0;
    }
    Job *job = job_new(class, data, -1);
    job->lane = lane;
    queue_push(job->lane, &job->node, &job->place);
    worker->wake();
    return 1;
}

/* ---- The worker's side ---- */

/* May a job of this lane be handed out now? */
static int has_room(int lane, int ready, const JobsRoom *room) {
    if (lane == LANE_NOTICES) return 1;
    if (room->all <= 0 || (!ready && lane != LANE_EARLY)) return 0;
    return lane == LANE_FUNCTIONS ? room->functions > 0 : lane != LANE_BACKGROUND || room->background > 0;
}

/* What the worker may have of each user. Several runs at the same time need as many jobs more; of users' functions it
 * gets what its threads take up, once over. */
static void set_limits(void) {
    uint64_t now_ms = RedisModule_MonotonicMicroseconds() / 1000;
    long long at_once = config.threads_per_queue * (config.inference_workers > 1 ? config.inference_workers : 1);
    QueueLimits models = {(uint32_t)(config.worker_ahead * at_once), (uint32_t)(config.shared_ahead * at_once),
                          LINGER_MS};
    QueueLimits functions = {UINT32_MAX, (uint32_t)(2 * config.function_threads), LINGER_MS};
    queue_limit(lanes[LANE_CLIENTS], models);
    queue_limit(lanes[LANE_FUNCTIONS], functions);
    queue_tick(lanes[LANE_CLIENTS], now_ms);
    queue_tick(lanes[LANE_FUNCTIONS], now_ms);
}

/* The lane of the job that may be tried again now, for the lanes take turns; -1: none. */
static int lane_to_try(int ready, const JobsRoom *room) {
    if (!ready || (tried && RedisModule_MonotonicMicroseconds() - tried->started_us < APART_MS * 1000)) return -1;
    for (int i = 0; i < LANE_COUNT; i++) {
        int lane = (suspect_turn + i) % LANE_COUNT;
        if (queue_length(suspects[lane]) && has_room(lane, ready, room)) return lane;
    }
    return -1;
}

int jobs_available(int ready, const JobsRoom *room) {
    set_limits();
    if (lane_to_try(ready, room) >= 0) return 1;
    for (int i = 0; i < LANE_COUNT; i++)
        if (has_room(i, ready, room) && queue_ready(lanes[i])) return 1;
    return 0;
}

static void on_apart(RedisModuleCtx *ctx, void *data) {
    (void)ctx;
    (void)data;
    worker->wake();
}

static Job *try_next(int lane, JobsRoom *room) {
    Job *job = (Job *)queue_pop(suspects[lane]);
    job->suspect = 0;
    suspect_turn = lane + 1;
    tried = job;
    queue_hold(job->lane, &job->node, &job->place);
    room->all--;
    room->functions -= lane == LANE_FUNCTIONS;
    room->background -= lane == LANE_BACKGROUND;
    if (any_suspect()) RedisModule_CreateTimer(server_ctx(), APART_MS, on_apart, NULL);
    return job;
}

static Job *take(int ready, JobsRoom *room) {
    QueueNode *node = queue_pop(lanes[LANE_NOTICES]);
    int again = node ? -1 : lane_to_try(ready, room);
    if (again >= 0) return try_next(again, room);
    enum { TAKING_TURNS = LANE_COUNT - LANE_EARLY };
    for (int i = 0; i < TAKING_TURNS && !node; i++) {
        int lane = LANE_EARLY + (lane_turn + i) % TAKING_TURNS;
        if (!has_room(lane, ready, room) || !(node = queue_pop(lanes[lane]))) continue;
        lane_turn = (lane - LANE_EARLY + 1) % TAKING_TURNS;
        room->functions -= lane == LANE_FUNCTIONS;
        room->background -= lane == LANE_BACKGROUND;
    }
    if (node && ((Job *)node)->id) room->all--;
    return (Job *)node;
}

static void start(Job *job) {
    job->state = JOB_RUNNING;
    job->started_us = RedisModule_MonotonicMicroseconds();
    record(stats[job->kind].queue_us, job->started_us - job->queued_us);
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

void jobs_asked(void) { asked++; }

/* When the job came, in microseconds of CLOCK_MONOTONIC: the server's own clock may be another one, and the worker must
 * be able to compare. */
static long long came_us(const Job *job) {
    struct timespec now;
    if (!job->id || clock_gettime(CLOCK_MONOTONIC, &now)) return 0;
    long long waited = (long long)(RedisModule_MonotonicMicroseconds() - job->queued_us);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000 - waited;
}

int jobs_hand_out(RedisModuleCtx *ctx, int ready, JobsRoom *room) {
    Job *job = take(ready, room);
    if (!job) return 0;
    if (job->id) start(job);
    long long left = 0;
    if (job->deadline_us) {
        left = ((long long)job->deadline_us - (long long)RedisModule_MonotonicMicroseconds()) / 1000;
        if (left < 1) left = 1;
    }
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    RedisModule_ReplyWithLongLong(ctx, (long long)job->id);
    RedisModule_ReplyWithCString(ctx, job->class->kind);
    RedisModule_ReplyWithLongLong(ctx, job->attempt);
    RedisModule_ReplyWithLongLong(ctx, left);
    RedisModule_ReplyWithLongLong(ctx, came_us(job));
    int count = job->class->emit ? job->class->emit(ctx, job->data) : 0;
    RedisModule_ReplySetArrayLength(ctx, 5 + count);
    if (!job->id) job_free(job);
    return 1;
}

static int may_end_so(const Job *job, JobStatus status) {
    unsigned special = JOB_STATUS(JOB_TENSORS) | JOB_STATUS(JOB_DAG) | JOB_STATUS(JOB_TIMEDOUT);
    return !(JOB_STATUS(status) & special & ~job->class->statuses);
}

int jobs_done(RedisModuleCtx *ctx, uint64_t id, JobResult *result) {
    if (bury(id)) return 0;
    Job *job = RedisModule_DictGetC(by_id, &id, sizeof id, NULL);
    if (!job || job->state != JOB_RUNNING) return 0;
    int has_value = (result->status == JOB_OK || result->status == JOB_OVERRIDE) && result->argc;
    size_t length;
    const char *buffer = has_value ? RedisModule_StringPtrLen(result->argv[0], &length) : NULL;
    if (!may_end_so(job, result->status) || (has_value && !resp_valid(buffer, length, 0))) {
        end_failed(ctx, job, CAUSE_ANSWERED, "PROTOCOL worker sent an invalid reply");
        return 1;
    }
    end(ctx, job, result);
    return 1;
}

static void free_tombstones(void) {
    RedisModuleDictIter *iterator;
    while (RedisModule_DictSize(tombstones)) {
        iterator = RedisModule_DictIteratorStartC(tombstones, "^", NULL, 0);
        size_t length;
        void *key = RedisModule_DictNextC(iterator, &length, NULL);
        uint64_t id;
        memcpy(&id, key, sizeof id);
        RedisModule_DictIteratorStop(iterator);
        bury(id);
    }
}

static void suspect(Job *job) {
    static const QueuePlace LINE = {{0}};
    job->suspect = 1;
    queue_push_front(suspects[lane_of(job)], &job->node, &LINE);
}

/* Takes the oldest last: each goes to the front of the queue, so the oldest ends up first. */
void jobs_worker_lost(RedisModuleCtx *ctx, int innocent) {
    free_tombstones();
    while (running) {
        Job *job = running;
        if (job->attempt > 1 && !innocent) {
            end_failed(ctx, job, CAUSE_LOST, "WORKERLOST worker died twice on this job");
            continue;
        }
        unlink_running(job);
        if (!innocent) job->attempt++;
        stats[job->kind].retried++;
        if (!job->client) disarm(job);
        job->state = JOB_QUEUED;
        job->started_us = 0;
        queue_release(job->lane, &job->node.hold);
        if (innocent || job->lane == lanes[LANE_EARLY]) queue_push_front(job->lane, &job->node, &job->place);
        else suspect(job);
    }
    worker->wake();
}

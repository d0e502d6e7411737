/* A worker may still work on a cancelled job. Until the worker stops, the job blocks the next job of its order
 * (order.h) and counts against the limits of its user. The module removes the job from the list of cancelled jobs in
 * one of these cases:
 * - The worker reports the end of the job.
 * - The worker dies.
 * - The worker does not stop in time. Then the module kills the worker. */
#include "jobs/cancelled.h"

#include <stdio.h>
#include <string.h>

#include "jobs/queues.h"
#include "server/config.h"
#include "server/server.h"

typedef struct Cancelled {
    uint64_t id;
    RedisModuleTimerID timer;
    int was_paused;
    uint64_t told_at;   /* the number of QA.NEXT calls when the module sent the notice; 0: not sent yet */
    long long later_ms; /* ms that the worker may continue after it has got the notice. If the client left early, this
                           is the time until the deadline */
    Order *order;       /* the job's order, whose next job must wait; or NULL */
    Queue *queue;
    QueueHold hold;
} Cancelled;

static RedisModuleDict *cancelled; /* job id -> Cancelled */
static uint64_t asked;             /* number of QA.NEXT calls */
static void (*kill_worker)(const char *reason, int innocent);

void cancelled_on_load(void) { cancelled = RedisModule_CreateDict(NULL); }

void cancelled_attach(void (*kill)(const char *reason, int innocent)) { kill_worker = kill; }

void cancelled_asked(void) { asked++; }

static int emit_cancel(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithLongLong(ctx, *(long long *)data);
    return 1;
}

/* Called when the module has sent the notice: frees the data of the notice. After the notice, a worker whose event loop
 * is not blocked calls QA.NEXT again. So this function stores the number of QA.NEXT calls before the notice. */
static void free_cancel(void *data) {
    uint64_t id = (uint64_t)*(long long *)data;
    Cancelled *found = RedisModule_DictGetC(cancelled, &id, sizeof id, NULL);
    if (found) found->told_at = asked;
    RedisModule_Free(data);
}

static const JobClass CANCEL = {.kind = "cancel", .emit = emit_cancel, .free = free_cancel, .before_ready = 1};

static void free_cancelled(Cancelled *job) {
    queues_next_in_order(job->order, job->queue);
    queues_release(job->queue, &job->hold);
    RedisModule_Free(job);
}

static void on_grace_over(RedisModuleCtx *ctx, void *data) {
    Cancelled *job = data;
    int paused = RedisModule_AvoidReplicaTraffic();
    /* During a pause of writes (CLIENT PAUSE, a failover), the worker cannot send QA.DONE. So after the pause, the
     * grace time starts again. */
    if (paused || job->was_paused) {
        job->was_paused = paused;
        job->timer = RedisModule_CreateTimer(ctx, config.cancel_grace_ms, on_grace_over, job);
        return;
    }
    int taken = job->told_at && asked > job->told_at;
    if (taken && job->later_ms > 0) {
        job->timer = RedisModule_CreateTimer(ctx, job->later_ms, on_grace_over, job);
        job->later_ms = 0;
        return;
    }
    char reason[128];
    snprintf(reason, sizeof reason, "has not %s job %llu within %lld ms",
             taken ? "stopped working on cancelled" : "called QA.NEXT after the cancellation of",
             (unsigned long long)job->id, config.cancel_grace_ms);
    RedisModule_DictDelC(cancelled, &job->id, sizeof job->id, NULL);
    kill_worker(reason, 1);
    free_cancelled(job);
}

void cancelled_add(Job *job, long long left_ms) {
    Cancelled *added = RedisModule_Calloc(1, sizeof *added);
    added->id = job->id;
    added->order = job->order;
    added->queue = job->queue;
    job->order = NULL;
    added->hold = job->node.hold;
    job->node.hold.flow = NULL;
    added->later_ms = left_ms;
    added->timer = RedisModule_CreateTimer(server_ctx(), config.cancel_grace_ms, on_grace_over, added);
    RedisModule_DictSetC(cancelled, &added->id, sizeof added->id, added);
    long long *id = RedisModule_Alloc(sizeof *id);
    *id = (long long)job->id;
    jobs_notify(&CANCEL, id);
}

int cancelled_remove(uint64_t id) {
    Cancelled *found = NULL;
    if (RedisModule_DictDelC(cancelled, &id, sizeof id, &found) != REDISMODULE_OK) return 0;
    RedisModule_StopTimer(server_ctx(), found->timer, NULL);
    free_cancelled(found);
    return 1;
}

void cancelled_clear(void) {
    while (RedisModule_DictSize(cancelled)) {
        RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(cancelled, "^", NULL, 0);
        size_t length;
        void *key = RedisModule_DictNextC(iterator, &length, NULL);
        uint64_t id;
        memcpy(&id, key, sizeof id);
        RedisModule_DictIteratorStop(iterator);
        cancelled_remove(id);
    }
}

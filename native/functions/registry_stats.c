/* The callers report when the queue has accepted or dropped a job of a registration, and when the job has ended. If a
 * full queue drops an event, the event's registration gets an onregistered job when the queue is at most half full. In
 * this job, the script finds the missed changes. */
#include "functions/registry_stats.h"

#include <string.h>

#include "server/config.h"
#include "server/texts.h"

enum { MAX_ERROR = 64 * 1024 };

static int any_overflowed;

/* ---- Counters ---- */

void registry_overflowed(Registration *registration) { registration->overflowed = any_overflowed = 1; }

void registry_triggered(Registration *registration, int queued) {
    if (queued) {
        registration->counters.triggered++;
    } else {
        registration->counters.aborted++;
        registry_overflowed(registration);
    }
}

void registry_set_error(RunCounters *counters, const char *error) {
    RedisModule_Free(counters->last_error);
    counters->last_error = text_new(error, strnlen(error, MAX_ERROR)).data;
}

void registry_ended(RedisModuleString *id, const JobResult *result) {
    Registration *registration = registry_find(id);
    if (!registration) return;
    RunCounters *counters = &registration->counters;
    if (result->status == JOB_SKIP) {
        counters->triggered -= counters->triggered >
                               0; /* triggered is 0 if a client has cleared the counters since the job was queued */
        return;
    }
    counters->last_run_us = result->run_us;
    counters->total_run_us += result->run_us;
    if (result->status != JOB_FAILED) {
        counters->succeeded++;
        return;
    }
    if (result->cause == CAUSE_ANSWERED) counters->failed++;
    else counters->aborted++;
    registry_set_error(counters, result->error);
}

void registry_clear_stats(void) {
    for (Registration *at = registry_first(); at; at = at->next) {
        RedisModule_Free(at->counters.last_error);
        memset(&at->counters, 0, sizeof at->counters);
    }
}

/* ---- Repair ---- */

static int emit_id(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithString(ctx, data);
    return 1;
}

static void free_id(void *data) { RedisModule_FreeString(NULL, data); }

static RedisModuleString *id_of(void *data) { return data; }

static const JobClass ONREGISTERED = {.kind = "onregistered", .emit = emit_id, .free = free_id, .registration = id_of};

void registry_repair(void) {
    if (!any_overflowed || (long long)jobs_queued_events() * 2 > config.max_events) return;
    for (Registration *at = registry_first(); at; at = at->next) {
        if (!at->overflowed) continue;
        RedisModuleString *id = RedisModule_CreateStringFromString(NULL, at->fields[REG_ID]);
        if (!jobs_submit(&ONREGISTERED, id, config.script_timeout_ms))
            return; /* the next call handles the remaining registrations */
        at->overflowed = 0;
    }
    any_overflowed = 0;
}

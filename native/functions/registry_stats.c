/* The counters of registrations. Jobs report here when they enter the queue and when they end; QA.STREAM reports
 * batches of streams.
 *
 * A full queue that drops an event marks its registration. Once the queue has drained to half, the registration gets an
 * onregistered job, in which the function looks for what it has missed. */
#include "functions/registry_stats.h"

#include <stdio.h>
#include <string.h>

#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/links.h"
#include "server/pairs.h"
#include "server/resp_reply.h"
#include "server/server.h"

static const char *const STATUS_NAMES[] = {"OK", "WAITING_FOR_RETRY_ON_FAILURE", "ABORTED", "PAUSED"};
enum { STATUS_COUNT = sizeof STATUS_NAMES / sizeof *STATUS_NAMES, MAX_ERROR = 64 * 1024 };
#define MAX_DURATION (1LL << 50) /* of a worker's numbers, so that their sums do not overflow */

static int any_overflowed;
static unsigned long long stream_runs;

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

static void set_error(RunCounters *counters, const char *error) {
    size_t length = strnlen(error, MAX_ERROR);
    RedisModule_Free(counters->last_error);
    counters->last_error = RedisModule_Alloc(length + 1);
    memcpy(counters->last_error, error, length);
    counters->last_error[length] = '\0';
}

void registry_ended(RedisModuleString *id, const JobResult *result) {
    Registration *registration = registry_find(id);
    if (!registration) return;
    RunCounters *counters = &registration->counters;
    if (result->status == JOB_SKIP) {
        counters->triggered -= counters->triggered > 0; /* 0 when something has cleared the counters since */
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
    set_error(counters, result->error);
}

void registry_clear_stats(void) {
    for (Registration *at = registry_first(); at; at = at->next) {
        RedisModule_Free(at->counters.last_error);
        memset(&at->counters, 0, sizeof at->counters);
    }
}

unsigned long long registry_stream_runs(void) { return stream_runs; }

/* ---- QA.STREAM ---- */

/* Counts the outcome of a batch; 0 when the arguments are not one. */
static int count_batch(RunCounters *counters, RedisModuleString **argv) {
    const char *outcome = RedisModule_StringPtrLen(argv[0], NULL);
    unsigned long long *counter = !strcmp(outcome, "OK")        ? &counters->succeeded
                                  : !strcmp(outcome, "ERR")     ? &counters->failed
                                  : !strcmp(outcome, "ABORTED") ? &counters->aborted
                                                                : NULL;
    long long run_us, lag_ms;
    if (!counter || !arg_count(argv[1], MAX_DURATION, &run_us) || !arg_count(argv[2], MAX_DURATION, &lag_ms)) return 0;
    stream_runs++;
    counters->triggered++;
    (*counter)++;
    counters->last_run_us = run_us;
    counters->total_run_us += run_us;
    counters->last_lag_ms = lag_ms;
    counters->total_lag_ms += lag_ms;
    if (counter != &counters->succeeded) set_error(counters, RedisModule_StringPtrLen(argv[3], NULL));
    return 1;
}

/* A retry has succeeded: nothing is wrong any more. */
static void clear_error(Registration *registration) {
    RedisModule_Free(registration->counters.last_error);
    registration->counters.last_error = NULL;
}

static int QA_STREAM_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!caller_is_log(ctx) && !link_require(ctx, "QA.STREAM")) return REDISMODULE_OK;
    if (argc != 3 && argc != 7) return RedisModule_WrongArity(ctx);
    Registration *registration = registry_find(argv[1]);
    if (!registration || registration->source != SOURCE_STREAM) {
        char error[128];
        snprintf(error, sizeof error, "NOREG no such registration: %.64s", RedisModule_StringPtrLen(argv[1], NULL));
        return RedisModule_ReplyWithError(ctx, error);
    }
    const char *word = RedisModule_StringPtrLen(argv[2], NULL);
    int status = 0;
    while (status < STATUS_COUNT && strcmp(STATUS_NAMES[status], word)) status++;
    if (status == STATUS_COUNT)
        return RedisModule_ReplyWithError(ctx,
                                          "ERR status must be OK, WAITING_FOR_RETRY_ON_FAILURE, ABORTED or PAUSED");
    if (argc == 7 && !count_batch(&registration->counters, argv + 3))
        return RedisModule_ReplyWithError(
            ctx, "ERR an outcome is OK, ERR or ABORTED, run_us and lag_ms from 0, and an error");
    if (argc == 7 && registration->status == STREAM_WAITING && status == STREAM_OK) clear_error(registration);
    int was_aborted = registration->status == STREAM_ABORTED, was_paused = registration->paused;
    registration->status = (StreamStatus)status;
    if (status == STREAM_PAUSED) registration->paused = 1;
    /* An abort or a pause must outlive this server; other states need not. */
    if ((was_aborted != (status == STREAM_ABORTED) || was_paused != registration->paused) &&
        (caller_is_log(ctx) || server_is_active_primary(ctx)))
        RedisModule_Replicate(ctx, "QA.STREAM", "ss", argv[1], argv[2]);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- Repair ---- */

static int emit_id(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithString(ctx, data);
    return 1;
}

static void free_id(void *data) { RedisModule_FreeString(NULL, data); }

static RedisModuleString *id_of(void *data) { return data; }

static const JobClass ONREGISTERED = {.kind = "onregistered", .emit = emit_id, .free = free_id, .registration = id_of};

void registry_repair(RedisModuleCtx *ctx) {
    if (!any_overflowed || (long long)jobs_queued_events() * 2 > config.max_events) return;
    for (Registration *at = registry_first(); at; at = at->next) {
        if (!at->overflowed) continue;
        RedisModuleString *id = RedisModule_CreateStringFromString(NULL, at->fields[REG_ID]);
        if (!jobs_submit(ctx, &ONREGISTERED, id, config.script_timeout_ms))
            return; /* the others follow when the queue has drained again */
        at->overflowed = 0;
    }
    any_overflowed = 0;
}

/* ---- RG.DUMPREGISTRATIONS ---- */

static void reply_average(RedisModuleCtx *ctx, const char *name, double total, unsigned long long count) {
    RedisModule_ReplyWithCString(ctx, name);
    RedisModuleString *average = RedisModule_CreateStringPrintf(ctx, "%.3f", count ? total / (double)count : 0.0);
    RedisModule_ReplyWithString(ctx, average);
    RedisModule_FreeString(ctx, average);
}

static void reply_data(RedisModuleCtx *ctx, const Registration *registration) {
    size_t length;
    const RunCounters *counters = &registration->counters;
    int is_stream = registration->source == SOURCE_STREAM;
    unsigned long long runs = counters->succeeded + counters->failed + counters->aborted;
    RedisModule_ReplyWithArray(ctx, is_stream ? 26 : 20);
    RedisModule_ReplyWithCString(ctx, "mode");
    RedisModule_ReplyWithString(ctx, registration->fields[REG_MODE]);
    pair_number(ctx, "numTriggered", (long long)counters->triggered);
    pair_number(ctx, "numSuccess", (long long)counters->succeeded);
    pair_number(ctx, "numFailures", (long long)counters->failed);
    pair_number(ctx, "numAborted", (long long)counters->aborted);
    pair_number(ctx, "lastRunDurationMS", counters->last_run_us / 1000);
    pair_number(ctx, "totalRunDurationMS", counters->total_run_us / 1000);
    reply_average(ctx, "avgRunDurationMS", (double)counters->total_run_us / 1000.0, runs);
    if (is_stream) {
        pair_number(ctx, "lastEstimatedLagMS", counters->last_lag_ms);
        reply_average(ctx, "avgEstimatedLagMS", (double)counters->total_lag_ms, runs);
    }
    RedisModule_ReplyWithCString(ctx, "lastError");
    if (counters->last_error) RedisModule_ReplyWithCString(ctx, counters->last_error);
    else RedisModule_ReplyWithNull(ctx);
    RedisModule_ReplyWithCString(ctx, "args");
    const char *args = RedisModule_StringPtrLen(registration->fields[REG_ARGS], &length);
    resp_reply(ctx, args, length, 0);
    if (!is_stream) return;
    RedisModule_ReplyWithCString(ctx, "status");
    RedisModule_ReplyWithCString(ctx, STATUS_NAMES[registration->paused ? STREAM_PAUSED : registration->status]);
}

int RG_DUMPREGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    RedisModule_ReplyWithArray(ctx, (long)registry_registrations());
    for (Registration *at = registry_first(); at; at = at->next) {
        size_t length;
        RedisModule_ReplyWithArray(ctx, 12);
        RedisModule_ReplyWithCString(ctx, "id");
        RedisModule_ReplyWithString(ctx, at->fields[REG_ID]);
        RedisModule_ReplyWithCString(ctx, "reader");
        RedisModule_ReplyWithString(ctx, at->fields[REG_SOURCE]);
        RedisModule_ReplyWithCString(ctx, "desc");
        RedisModule_StringPtrLen(at->fields[REG_DESCRIPTION], &length);
        if (length) RedisModule_ReplyWithString(ctx, at->fields[REG_DESCRIPTION]);
        else RedisModule_ReplyWithNull(ctx);
        RedisModule_ReplyWithCString(ctx, "RegistrationData");
        reply_data(ctx, at);
        RedisModule_ReplyWithCString(ctx, "PD");
        RedisModule_ReplyWithString(ctx, at->fields[REG_PRIVATE_DATA]);
        RedisModule_ReplyWithCString(ctx, "ExecutionThreadPool");
        RedisModule_ReplyWithCString(ctx, "DefaultPool");
    }
    return REDISMODULE_OK;
}

int registry_stats_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"qa.stream", QA_STREAM_RedisCommand, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

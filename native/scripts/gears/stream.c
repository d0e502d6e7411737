/* One notice covers any number of additions to a stream, because the worker reads the stream itself. So while a notice
 * is pending, the module sends no second notice for the same registration and key. */
#include "scripts/gears/stream.h"

#include <stdio.h>
#include <string.h>

#include "functions/registry_stats.h"
#include "jobs/jobs.h"
#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/links.h"
#include "server/server.h"

static const char *const STATUS_NAMES[] = {"OK", "WAITING_FOR_RETRY_ON_FAILURE", "ABORTED", "PAUSED"};
enum { STATUS_COUNT = sizeof STATUS_NAMES / sizeof *STATUS_NAMES };
#define MAX_DURATION (1LL << 50) /* a limit for the worker's numbers, so that their sums do not overflow */

static unsigned long long batches;

const char *stream_status(const Registration *registration) {
    return STATUS_NAMES[registration->paused ? STREAM_PAUSED : registration->status];
}

unsigned long long stream_batches(void) { return batches; }

/* ---- Notices ---- */

/* A stream notice in the queue. */
typedef struct Addition {
    RedisModuleString *id, *key;
    size_t length;
    char name[]; /* its key in `pending`: the length of `id`, then `id` and `key` */
} Addition;

static RedisModuleDict *pending;

static int emit_addition(RedisModuleCtx *ctx, void *data) {
    const Addition *addition = data;
    RedisModule_ReplyWithString(ctx, addition->id);
    RedisModule_ReplyWithString(ctx, addition->key);
    return 2;
}

/* Called when the worker has got the notice, or the notice was dropped. The next addition then needs a new notice. */
static void free_addition(void *data) {
    Addition *addition = data;
    RedisModule_DictDelC(pending, addition->name, addition->length, NULL);
    RedisModule_FreeString(NULL, addition->id);
    RedisModule_FreeString(NULL, addition->key);
    RedisModule_Free(addition);
}

static const JobClass STREAM = {.kind = "stream", .emit = emit_addition, .free = free_addition, .with_events = 1};

static Addition *new_addition(RedisModuleString *id, RedisModuleString *key) {
    size_t id_length, key_length;
    const char *id_text = RedisModule_StringPtrLen(id, &id_length),
               *key_text = RedisModule_StringPtrLen(key, &key_length);
    size_t length = sizeof id_length + id_length + key_length;
    Addition *addition = RedisModule_Alloc(sizeof *addition + length);
    addition->length = length;
    memcpy(addition->name, &id_length, sizeof id_length);
    memcpy(addition->name + sizeof id_length, id_text, id_length);
    memcpy(addition->name + sizeof id_length + id_length, key_text, key_length);
    return addition;
}

static void announce(Registration *registration, RedisModuleString *key) {
    Addition *addition = new_addition(registration->fields[REG_ID], key);
    if (RedisModule_DictSetC(pending, addition->name, addition->length, addition) != REDISMODULE_OK) {
        RedisModule_Free(addition); /* such a notice is already pending */
        return;
    }
    addition->id = RedisModule_CreateStringFromString(NULL, registration->fields[REG_ID]);
    addition->key = RedisModule_CreateStringFromString(NULL, key);
    if (!jobs_notify(&STREAM, addition)) registry_overflowed(registration);
}

static int on_stream(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    if (!registry_streams() || strcmp(event, "xadd")) return REDISMODULE_OK;
    if (RedisModule_GetSelectedDb(ctx) != 0 || !server_is_active_primary(ctx)) return REDISMODULE_OK;
    if (server_is_importing(ctx))
        return REDISMODULE_OK; /* the source shard of the slot has already handled these entries */
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    for (Registration *at = registry_first(); at; at = at->next)
        if (at->source == SOURCE_STREAM && registration_matches_key(at, text, length)) announce(at, key);
    return REDISMODULE_OK;
}

static const JobClass PROMOTED = {.kind = "promoted"};

static void on_role(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    if (subevent == REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER) jobs_notify(&PROMOTED, NULL);
}

/* ---- QA.STREAM ---- */

/* Counts the outcome of a batch. `argv` has four arguments: outcome (OK, ERR or ABORTED), run time in microseconds, lag
 * in milliseconds, error. 0: the arguments are not a valid outcome. */
static int count_batch(RunCounters *counters, RedisModuleString **argv) {
    const char *outcome = RedisModule_StringPtrLen(argv[0], NULL);
    unsigned long long *counter = !strcmp(outcome, "OK")        ? &counters->succeeded
                                  : !strcmp(outcome, "ERR")     ? &counters->failed
                                  : !strcmp(outcome, "ABORTED") ? &counters->aborted
                                                                : NULL;
    long long run_us, lag_ms;
    if (!counter || !arg_count(argv[1], MAX_DURATION, &run_us) || !arg_count(argv[2], MAX_DURATION, &lag_ms)) return 0;
    batches++;
    counters->triggered++;
    (*counter)++;
    counters->last_run_us = run_us;
    counters->total_run_us += run_us;
    counters->last_lag_ms = lag_ms;
    counters->total_lag_ms += lag_ms;
    if (counter != &counters->succeeded) registry_set_error(counters, RedisModule_StringPtrLen(argv[3], NULL));
    return 1;
}

/* Removes the last error of a registration. Called when a retry has succeeded. */
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
    /* Only an abort or a pause must be valid after a restart or a failover. So this command is replicated only if it
     * starts or ends an abort, or starts a pause. */
    if ((was_aborted != (status == STREAM_ABORTED) || was_paused != registration->paused) &&
        (caller_is_log(ctx) || server_is_active_primary(ctx)))
        RedisModule_Replicate(ctx, "QA.STREAM", "ss", argv[1], argv[2]);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int stream_on_load(RedisModuleCtx *ctx) {
    pending = RedisModule_CreateDict(NULL);
    static const CommandSpec COMMANDS[] = {
        {"qa.stream", QA_STREAM_RedisCommand, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous"},
    };
    if (commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS) != REDISMODULE_OK) return REDISMODULE_ERR;
    RedisModuleEvent role = {REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, 1};
    if (RedisModule_SubscribeToServerEvent(ctx, role, on_role) != REDISMODULE_OK) return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_STREAM, on_stream);
}

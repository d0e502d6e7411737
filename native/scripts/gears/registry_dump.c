/* RG.DUMPREGISTRATIONS: shows registrations and their counters, with the names of RedisGears. */
#include <stdio.h>

#include "functions/registry.h"
#include "scripts/gears/stream.h"
#include "server/commands.h"
#include "server/pairs.h"
#include "server/resp_reply.h"

static void reply_average(RedisModuleCtx *ctx, const char *name, double total, unsigned long long count) {
    char average[64];
    snprintf(average, sizeof average, "%.3f", count ? total / (double)count : 0.0);
    RedisModule_ReplyWithCString(ctx, name);
    RedisModule_ReplyWithCString(ctx, average);
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
    RedisModule_ReplyWithCString(ctx, stream_status(registration));
}

static int RG_DUMPREGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
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

int registry_dump_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.dumpregistrations", RG_DUMPREGISTRATIONS_RedisCommand, "readonly", 0, 0, 0, "read slow"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

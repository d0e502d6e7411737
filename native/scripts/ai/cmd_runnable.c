/* AI.INFO, AI._MODELSCAN, AI._SCRIPTSCAN: the models and scripts of this shard. */
#include <string.h>

#include "models/model.h"
#include "scripts/ai/script.h"
#include "server/args.h"
#include "server/commands.h"
#include "server/keyspace.h"
#include "server/pairs.h"

/* ---- AI._MODELSCAN, AI._SCRIPTSCAN ---- */

typedef struct Scan {
    RedisModuleCtx *ctx;
    RedisModuleType *type;
    long found;
} Scan;

/* Replies with the key and the tag of a model or script. Skips a value that is no longer in its key, for example
 * because only a job still uses the value. Also skips values in other databases. */
static void visit_scanned(Runnable *runnable, void *data) {
    Scan *scan = data;
    RedisModuleString *name = RedisModule_CreateString(scan->ctx, runnable->key.data, runnable->key.length);
    void *value;
    if (keyspace_peek(scan->ctx, name, scan->type, &value) == KEY_FOUND && value == runnable) {
        RedisModule_ReplyWithArray(scan->ctx, 2);
        RedisModule_ReplyWithStringBuffer(scan->ctx, runnable->key.data, runnable->key.length);
        RedisModule_ReplyWithStringBuffer(scan->ctx, runnable->tag.data, runnable->tag.length);
        scan->found++;
    }
    RedisModule_FreeString(scan->ctx, name);
}

static int scan(RedisModuleCtx *ctx, int argc, const RunnableClass *class, RedisModuleType *type) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    Scan state = {ctx, type, 0};
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    runnable_each(class, visit_scanned, &state);
    RedisModule_ReplySetArrayLength(ctx, state.found);
    return REDISMODULE_OK;
}

static int AI_MODELSCAN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return scan(ctx, argc, &model_class, model_key_type());
}

static int AI_SCRIPTSCAN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return scan(ctx, argc, &script_class, script_key_type());
}

/* ---- AI.INFO ---- */

static Runnable *find(RedisModuleCtx *ctx, RedisModuleString *key) {
    void *value;
    if (keyspace_read(ctx, key, model_key_type(), &value) == KEY_FOUND) return value;
    if (keyspace_peek(ctx, key, script_key_type(), &value) == KEY_FOUND) return value;
    return NULL;
}

/* AI.INFO key [RESETSTAT] */
static int AI_INFO_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 3) return RedisModule_WrongArity(ctx);
    Runnable *runnable = find(ctx, argv[1]);
    if (!runnable) return RedisModule_ReplyWithError(ctx, "ERR cannot find run info for key");
    const RunnableClass *class = runnable->class;
    if (argc == 3) {
        if (!arg_is(argv[2], "RESETSTAT")) return RedisModule_ReplyWithError(ctx, "ERR unsupported subcommand");
        runnable->stats = (RunStats){0, 0, 0, 0};
        return RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
    size_t length;
    const char *name = RedisModule_StringPtrLen(argv[1], &length), *backend = runnable_backend(runnable);
    RedisModule_ReplyWithArray(ctx, 18);
    pair_text(ctx, "key", name, length);
    pair_text(ctx, "type", class->type, strlen(class->type));
    pair_text(ctx, "backend", backend, strlen(backend));
    pair_text(ctx, "device", runnable->device, strlen(runnable->device));
    pair_text(ctx, "tag", runnable->tag.data, runnable->tag.length);
    pair_number(ctx, "duration", runnable->stats.duration_us);
    pair_number(ctx, "samples", class->counts_samples ? runnable->stats.samples : -1);
    pair_number(ctx, "calls", runnable->stats.calls);
    pair_number(ctx, "errors", runnable->stats.errors);
    return REDISMODULE_OK;
}

int runnable_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI._MODELSCAN", AI_MODELSCAN_RedisCommand, "readonly", 0, 0, 0, NULL},
        {"AI._SCRIPTSCAN", AI_SCRIPTSCAN_RedisCommand, "readonly", 0, 0, 0, NULL},
        {"AI.INFO", AI_INFO_RedisCommand, "readonly", 1, 1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

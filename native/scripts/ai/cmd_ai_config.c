/* AI.CONFIG. A change applies to all clients of this shard until the server ends. Only administrators may change
 * settings. */
#include <stdio.h>

#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"

static int config_get(RedisModuleCtx *ctx, RedisModuleString *name) {
    if (arg_is(name, "MODEL_CHUNK_SIZE")) return RedisModule_ReplyWithLongLong(ctx, config.model_chunk_size);
    if (arg_is(name, "BACKENDSPATH")) return RedisModule_ReplyWithCString(ctx, config.backends_path);
    return RedisModule_ReplyWithNull(ctx);
}

/* All backends are part of the worker. The worker loads a backend for the first model that needs it, so there is no
 * file to load here. */
static int load_backend(RedisModuleCtx *ctx, RedisModuleString *name) {
    if (arg_is(name, "ONNX") || arg_is(name, "TORCH")) return RedisModule_ReplyWithSimpleString(ctx, "OK");
    if (arg_is(name, "TF") || arg_is(name, "TFLITE"))
        return RedisModule_ReplyWithError(
            ctx,
            "ERR error loading backend: TF and TFLITE are left out, convert the model to ONNX and use backend ONNX");
    return RedisModule_ReplyWithError(ctx, "ERR unsupported backend");
}

static int set_chunk_size(RedisModuleCtx *ctx, RedisModuleString *size) {
    long long bytes;
    char error[120];
    if (!arg_count(size, MODEL_CHUNK_MAX, &bytes) || bytes == 0)
        return RedisModule_ReplyWithError(ctx, "ERR MODEL_CHUNK_SIZE: invalid chunk size");
    if (bytes < MODEL_CHUNK_MIN) {
        snprintf(error, sizeof error, "ERR MODEL_CHUNK_SIZE: invalid chunk size %lld, the least is %d bytes", bytes,
                 MODEL_CHUNK_MIN);
        return RedisModule_ReplyWithError(ctx, error);
    }
    config.model_chunk_size = bytes;
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int set_backends_path(RedisModuleCtx *ctx, RedisModuleString *path) {
    RedisModule_Free(config.backends_path);
    config.backends_path = RedisModule_Strdup(RedisModule_StringPtrLen(path, NULL));
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* AI.CONFIG GET name | MODEL_CHUNK_SIZE n | BACKENDSPATH path | LOADBACKEND name path */
static int AI_CONFIG_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    if (arg_is(argv[1], "GET")) return argc == 3 ? config_get(ctx, argv[2]) : RedisModule_WrongArity(ctx);
    int chunk_size = arg_is(argv[1], "MODEL_CHUNK_SIZE"), path = arg_is(argv[1], "BACKENDSPATH");
    if (!chunk_size && !path && !arg_is(argv[1], "LOADBACKEND"))
        return RedisModule_ReplyWithError(ctx, "ERR unsupported subcommand");
    if (!caller_is_admin(ctx, "AI.CONFIG")) return REDISMODULE_OK;
    if (chunk_size && argc < 3) return RedisModule_ReplyWithError(ctx, "ERR MODEL_CHUNK_SIZE: missing chunk size");
    if (path && argc < 3) return RedisModule_ReplyWithError(ctx, "ERR BACKENDSPATH: missing path argument");
    if (argc != (chunk_size || path ? 3 : 4)) return RedisModule_WrongArity(ctx);
    if (chunk_size) return set_chunk_size(ctx, argv[2]);
    return path ? set_backends_path(ctx, argv[2]) : load_backend(ctx, argv[2]);
}

int ai_config_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.CONFIG", AI_CONFIG_RedisCommand, "write", 0, 0, 0, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

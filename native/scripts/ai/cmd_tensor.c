/* AI.TENSORSET and AI.TENSORGET. These commands need no worker. */
#include "scripts/ai/tensor_args.h"
#include "scripts/ai/tensor_type.h"
#include "server/commands.h"
#include "server/keyspace.h"

/* AI.TENSORSET key dtype dim.. [BLOB data | VALUES value..]. Without dims, the tensor is a scalar. Scalars are allowed
 * because models output them, and replicas must accept them. */
static int AI_TENSORSET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    Tensor *tensor;
    const char *error = keyspace_check_types(ctx, &argv[1], 1, tensor_key_type());
    if (!error) error = tensor_parse(ctx, argv + 2, argc - 2, &tensor);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    tensor_store(ctx, argv[1], tensor);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* AI.TENSORGET key [META] [BLOB | VALUES] */
static int AI_TENSORGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 4) return RedisModule_WrongArity(ctx);
    Tensor *tensor;
    TensorFormat format;
    const char *error = tensor_read_key(ctx, argv[1], &tensor);
    if (!error) error = tensor_format_parse(argv + 2, argc - 2, &format);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    tensor_reply(ctx, tensor, &format);
    return REDISMODULE_OK;
}

int tensor_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.TENSORSET", AI_TENSORSET_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"AI.TENSORGET", AI_TENSORGET_RedisCommand, "readonly", 1, 1, 1, NULL},
    };
    if (tensor_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

/* AI.TENSORSET, AI.TENSORGET. */
#include "args.h"
#include "keyspace.h"
#include "module.h"
#include "tensor.h"

/* argv: everything after the key. */
static const char *tensor_parse(RedisModuleString **argv, int argc, Tensor **tensor) {
    int data = 1; /* where BLOB or VALUES stands */
    while (data < argc && !arg_is(argv[data], "BLOB") && !arg_is(argv[data], "VALUES")) data++;
    TensorShape shape;
    const char *error = tensor_shape_parse(&shape, argv[0], argv + 1, data - 1);
    if (error) return error;
    if (data == argc) return tensor_zeros(&shape, tensor);
    if (arg_is(argv[data], "VALUES")) return tensor_from_values(&shape, argv + data + 1, argc - data - 1, tensor);
    if (argc - data != 2) return "ERR a single binary string should come after the BLOB argument in 'AI.TENSORSET' command";
    size_t size;
    const char *blob = RedisModule_StringPtrLen(argv[data + 1], &size);
    return tensor_from_blob(&shape, blob, size, tensor);
}

/* AI.TENSORSET key dtype dim.. [BLOB data | VALUES value..]. No dims: a scalar, as models put out and replicas must take. */
static int AI_TENSORSET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    Tensor *tensor;
    const char *error = keyspace_check_types(ctx, &argv[1], 1, tensor_key_type());
    if (!error) error = tensor_parse(argv + 2, argc - 2, &tensor);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    tensor_store(ctx, argv[1], tensor);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

typedef struct GetFormat {
    int meta, blob, values;
} GetFormat;

static const char *parse_format(RedisModuleString **argv, int argc, GetFormat *format) {
    *format = (GetFormat){0, 0, 0};
    for (int i = 0; i < argc; i++) {
        if (arg_is(argv[i], "META"))
            format->meta = 1;
        else if (arg_is(argv[i], "BLOB"))
            format->blob = 1;
        else if (arg_is(argv[i], "VALUES"))
            format->values = 1;
        else
            return "ERR unsupported data format";
    }
    if (format->blob && format->values) return "ERR both BLOB and VALUES specified";
    if (argc == 0) format->meta = format->blob = 1;
    return NULL;
}

static void reply_data(RedisModuleCtx *ctx, const Tensor *tensor, const GetFormat *format) {
    if (format->values)
        tensor_reply_values(ctx, tensor);
    else
        RedisModule_ReplyWithStringBuffer(ctx, tensor_data(tensor), tensor->size);
}

/* AI.TENSORGET key [META] [BLOB | VALUES] */
static int AI_TENSORGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 4) return RedisModule_WrongArity(ctx);
    void *value;
    GetFormat format;
    switch (keyspace_read(ctx, argv[1], tensor_key_type(), &value)) {
    case KEY_EMPTY: return RedisModule_ReplyWithError(ctx, "ERR tensor key is empty or in a different shard");
    case KEY_WRONGTYPE: return RedisModule_ReplyWithError(ctx, REDISMODULE_ERRORMSG_WRONGTYPE);
    case KEY_FOUND: break;
    }
    const Tensor *tensor = value;
    const char *error = parse_format(argv + 2, argc - 2, &format);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (!format.meta) {
        reply_data(ctx, tensor, &format);
        return REDISMODULE_OK;
    }
    int data = format.blob || format.values;
    RedisModule_ReplyWithArray(ctx, data ? 6 : 4);
    RedisModule_ReplyWithCString(ctx, "dtype");
    RedisModule_ReplyWithCString(ctx, tensor_type_name((TensorType)tensor->type));
    RedisModule_ReplyWithCString(ctx, "shape");
    RedisModule_ReplyWithArray(ctx, tensor->ndim);
    for (int i = 0; i < tensor->ndim; i++) RedisModule_ReplyWithLongLong(ctx, tensor->dims[i]);
    if (data) {
        RedisModule_ReplyWithCString(ctx, format.values ? "values" : "blob");
        reply_data(ctx, tensor, &format);
    }
    return REDISMODULE_OK;
}

int tensor_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec commands[] = {
        {"AI.TENSORSET", AI_TENSORSET_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"AI.TENSORGET", AI_TENSORGET_RedisCommand, "readonly", 1, 1, 1, NULL},
    };
    if (tensor_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return module_register(ctx, commands, sizeof(commands) / sizeof(commands[0]));
}

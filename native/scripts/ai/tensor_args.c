/* Parses AI.TENSORSET and AI.TENSORGET, alone or in a DAG, and replies to AI.TENSORGET. */
#include "scripts/ai/tensor_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/args.h"
#include "server/caller.h"
#include "server/config.h"

/* ---- AI.TENSORSET ---- */

/* check_room does not check smaller tensors, because the server's own check of maxmemory has a larger tolerance. */
#define MIN_CHECKED_ZEROS (1LL << 20)

static int server_limits(RedisModuleCtx *ctx, long long *used, long long *limit, int *evicts) {
    RedisModuleServerInfoData *info = RedisModule_GetServerInfo(ctx, "memory");
    if (!info) return 0;
    const char *used_text = RedisModule_ServerInfoGetFieldC(info, "used_memory");
    const char *limit_text = RedisModule_ServerInfoGetFieldC(info, "maxmemory");
    const char *policy = RedisModule_ServerInfoGetFieldC(info, "maxmemory_policy");
    int found = used_text && limit_text && policy;
    if (found) {
        *used = strtoll(used_text, NULL, 10);
        *limit = strtoll(limit_text, NULL, 10);
        *evicts = strcmp(policy, "noeviction") != 0;
    }
    RedisModule_FreeServerInfo(ctx, info);
    return found && *limit > 0;
}

/* Checks whether a large tensor without data fits into maxmemory. The server has checked maxmemory before the command,
 * but a short command can create a large tensor. */
static const char *check_room(RedisModuleCtx *ctx, long long bytes) {
    long long used, limit;
    int evicts;
    if (bytes < MIN_CHECKED_ZEROS || !server_limits(ctx, &used, &limit, &evicts)) return NULL;
    if (bytes > limit || (!evicts && used + bytes > limit))
        return "OOM command not allowed when used memory > 'maxmemory'.";
    return NULL;
}

static const char *check_size(long long bytes) {
    static char error[120];
    if (bytes <= config.max_tensor_mb << 20) return NULL;
    snprintf(error, sizeof error, "ERR tensor of %lld bytes is larger than the limit of %lld bytes (qa.max-tensor-mb)",
             bytes, config.max_tensor_mb << 20);
    return error;
}

const char *tensor_parse(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, Tensor **tensor) {
    int data = 1; /* the position of BLOB or VALUES */
    while (data < argc && !arg_is(argv[data], "BLOB") && !arg_is(argv[data], "VALUES")) data++;
    TensorShape shape;
    int trusted = caller_is_log(ctx);
    const char *error = tensor_shape_parse(&shape, argv[0], argv + 1, data - 1);
    if (!error && !trusted) error = check_size(tensor_shape_bytes(&shape));
    if (!error && !trusted && data == argc) error = check_room(ctx, tensor_shape_bytes(&shape));
    if (error) return error;
    if (data == argc) return tensor_zeros(&shape, tensor);
    if (arg_is(argv[data], "VALUES")) return tensor_from_values(&shape, argv + data + 1, argc - data - 1, tensor);
    if (argc - data != 2)
        return "ERR a single binary string should come after the BLOB argument in 'AI.TENSORSET' command";
    size_t size;
    const char *blob = RedisModule_StringPtrLen(argv[data + 1], &size);
    if (!trusted && (error = check_size((long long)size))) return error;
    return tensor_from_blob(&shape, blob, size, tensor);
}

/* ---- AI.TENSORGET ---- */

const char *tensor_format_parse(RedisModuleString **argv, int argc, TensorFormat *format) {
    *format = (TensorFormat){0, 0, 0};
    for (int i = 0; i < argc; i++) {
        if (arg_is(argv[i], "META")) format->meta = 1;
        else if (arg_is(argv[i], "BLOB")) format->blob = 1;
        else if (arg_is(argv[i], "VALUES")) format->values = 1;
        else return "ERR unsupported data format";
    }
    if (format->blob && format->values) return "ERR both BLOB and VALUES specified";
    if (argc == 0) format->meta = format->blob = 1;
    return NULL;
}

static void reply_data(RedisModuleCtx *ctx, const Tensor *tensor, const TensorFormat *format) {
    if (format->values) tensor_reply_values(ctx, tensor);
    else RedisModule_ReplyWithStringBuffer(ctx, tensor_data(tensor), tensor->size);
}

void tensor_reply(RedisModuleCtx *ctx, const Tensor *tensor, const TensorFormat *format) {
    if (!format->meta) {
        reply_data(ctx, tensor, format);
        return;
    }
    int data = format->blob || format->values;
    RedisModule_ReplyWithArray(ctx, data ? 6 : 4);
    RedisModule_ReplyWithCString(ctx, "dtype");
    RedisModule_ReplyWithCString(ctx, tensor_type_name((TensorType)tensor->type));
    RedisModule_ReplyWithCString(ctx, "shape");
    RedisModule_ReplyWithArray(ctx, tensor->ndim);
    for (int i = 0; i < tensor->ndim; i++) RedisModule_ReplyWithLongLong(ctx, tensor->dims[i]);
    if (data) {
        RedisModule_ReplyWithCString(ctx, format->values ? "values" : "blob");
        reply_data(ctx, tensor, format);
    }
}

/* The data type AI_TENSOR: keys, RDB, AOF and replication. The server may call `free` on a background thread, where
 * releasing a tensor is safe. */
#include "scripts/ai/tensor_type.h"

#include "server/args.h"
#include "server/keyspace.h"

/* Encoding version 5 has dtype, ndim, dims.., blob. Loading refuses RedisAI's versions 0 to 4, which have other
 * fields. */
#define TENSOR_ENCVER 5

static RedisModuleType *tensor_module_type;

RedisModuleType *tensor_key_type(void) { return tensor_module_type; }

/* ---- Keys ---- */

const char *tensor_read_key(RedisModuleCtx *ctx, RedisModuleString *name, Tensor **tensor) {
    void *value;
    KeyState state = keyspace_read(ctx, name, tensor_module_type, &value);
    *tensor = value;
    if (state == KEY_EMPTY) return "ERR tensor key is empty or in a different shard";
    return state == KEY_FOUND ? NULL : REDISMODULE_ERRORMSG_WRONGTYPE;
}

void tensor_store(RedisModuleCtx *ctx, RedisModuleString *name, Tensor *tensor) {
    keyspace_store(ctx, name, tensor_module_type, tensor, "ai.tensorset");
}

/* Returns the arguments of AI.TENSORSET after the key: dtype, dims.., "BLOB", data. */
static ArgList tensor_args(const Tensor *tensor) {
    ArgList args = arg_list_new(TENSOR_MAX_NDIM + 3);
    arg_list_word(&args, tensor_type_name((TensorType)tensor->type));
    for (int i = 0; i < tensor->ndim; i++) arg_list_number(&args, tensor->dims[i]);
    arg_list_word(&args, "BLOB");
    arg_list_add(&args, tensor_data(tensor), tensor->size);
    return args;
}

void tensor_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Tensor *tensor) {
    ArgList args = tensor_args(tensor);
    RedisModule_Replicate(ctx, "AI.TENSORSET", "sv", key, args.items, args.n);
    arg_list_free(&args);
}

/* ---- Callbacks of the type ---- */

static void *tensor_rdb_load(RedisModuleIO *io, int encver) {
    if (encver != TENSOR_ENCVER) {
        RedisModule_LogIOError(io, "warning", "tensor has encoding version %d, this module reads version %d", encver,
                               TENSOR_ENCVER);
        return NULL;
    }
    TensorShape shape;
    uint64_t type = RedisModule_LoadUnsigned(io), ndim = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || type < TENSOR_FLOAT || type > TENSOR_STRING || ndim > TENSOR_MAX_NDIM) return NULL;
    shape.type = (TensorType)type;
    shape.ndim = (int)ndim;
    shape.count = 1;
    for (int i = 0; i < shape.ndim; i++) {
        uint64_t dim = RedisModule_LoadUnsigned(io);
        if (RedisModule_IsIOError(io) || dim == 0 || dim > (uint64_t)TENSOR_MAX_BYTES) return NULL;
        shape.dims[i] = (long long)dim;
        shape.count *= shape.dims[i]; /* no overflow: the product is at most 2^30 * 2^30 */
        if (shape.count > TENSOR_MAX_BYTES) return NULL;
    }
    size_t size;
    char *data = RedisModule_LoadStringBuffer(io, &size);
    if (!data) return NULL;
    Tensor *tensor = NULL;
    if (!RedisModule_IsIOError(io) && tensor_from_blob(&shape, data, size, &tensor)) tensor = NULL;
    RedisModule_Free(data);
    return tensor;
}

static void tensor_rdb_save(RedisModuleIO *io, void *value) {
    const Tensor *tensor = value;
    RedisModule_SaveUnsigned(io, tensor->type);
    RedisModule_SaveUnsigned(io, tensor->ndim);
    for (int i = 0; i < tensor->ndim; i++) RedisModule_SaveUnsigned(io, (uint64_t)tensor->dims[i]);
    RedisModule_SaveStringBuffer(io, tensor_data(tensor), tensor->size);
}

static void tensor_aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    ArgList args = tensor_args(value);
    RedisModule_EmitAOF(io, "AI.TENSORSET", "sv", key, args.items, args.n);
    arg_list_free(&args);
}

static size_t tensor_mem_usage(const void *value) { return RedisModule_MallocSize((void *)value); }

static size_t tensor_free_effort(RedisModuleString *key, const void *value) {
    return 1 + ((const Tensor *)value)->size / 4096; /* the number of pages to free */
}

static void tensor_digest(RedisModuleDigest *digest, void *value) {
    const Tensor *tensor = value;
    RedisModule_DigestAddLongLong(digest, tensor->type);
    for (int i = 0; i < tensor->ndim; i++) RedisModule_DigestAddLongLong(digest, tensor->dims[i]);
    RedisModule_DigestAddStringBuffer(digest, tensor_data(tensor), tensor->size);
    RedisModule_DigestEndSequence(digest);
}

static void *tensor_copy(RedisModuleString *from, RedisModuleString *to, const void *value) {
    return tensor_retain((Tensor *)value);
}

static void tensor_free(void *value) { tensor_release(value); }

int tensor_type_create(RedisModuleCtx *ctx) {
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = tensor_rdb_load,
        .rdb_save = tensor_rdb_save,
        .aof_rewrite = tensor_aof_rewrite,
        .mem_usage = tensor_mem_usage,
        .free_effort = tensor_free_effort,
        .digest = tensor_digest,
        .copy = tensor_copy,
        .free = tensor_free,
    };
    tensor_module_type = RedisModule_CreateDataType(ctx, "AI_TENSOR", TENSOR_ENCVER, &methods);
    return tensor_module_type ? REDISMODULE_OK : REDISMODULE_ERR;
}

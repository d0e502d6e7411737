/* Models as Runnables (runnable.h) and as values of keys. The bytes of a model are a Blob. Copies of a model share the
 * Blob. A model is replicated as AI.MODELSTORE with the names of its inputs and outputs. So a replica, or a server that
 * reads the AOF, stores the model without a worker. */
#include "models/model.h"

#include <string.h>

#include "server/args.h"
#include "server/keyspace.h"

static const char *model_backend(const Runnable *runnable) {
    return ((const Model *)runnable)->backend == MODEL_TORCH ? "TORCH" : "ONNX";
}

static void model_free_bytes(Runnable *runnable) {
    Blob *blob = ((Model *)runnable)->blob;
    if (blob) blob_release(blob);
}

static void model_free_rest(Runnable *runnable) {
    Model *model = (Model *)runnable;
    names_free(&model->inputs);
    names_free(&model->outputs);
    RedisModule_Free(model);
}

const RunnableClass model_class = {.type = "MODEL",
                                   .noun = "model",
                                   .backend_of = model_backend,
                                   .counts_samples = 1,
                                   .free_bytes = model_free_bytes,
                                   .free = model_free_rest};

Model *model_new(ModelBackend backend, const char *device, Blob *blob) {
    Model *model = RedisModule_Calloc(1, sizeof *model);
    runnable_init(&model->run, &model_class, device);
    model->backend = backend;
    model->blob = blob;
    return model;
}

const char *model_check_counts(const Model *model, int n_inputs, int n_outputs) {
    if (model->inputs.n && (size_t)n_inputs != model->inputs.n)
        return "Number of keys given as INPUTS here does not match model definition";
    if (model->outputs.n && (size_t)n_outputs != model->outputs.n)
        return "Number of keys given as OUTPUTS here does not match model definition";
    return NULL;
}

/* ---- The data type ---- */

/* Encoding version 5 has the number of the backend, the device, the tag, the batch options, the names, the size of the
 * file, and the file in pieces (blob.c). Versions 0 to 4 are RedisAI's and are refused: these versions encode backend
 * and device differently, and contain files for other runtimes. */
#define FIXED_ARGS 24

static RedisModuleType *model_module_type;

RedisModuleType *model_key_type(void) { return model_module_type; }

/* ---- Keys ---- */

const char *model_read(RedisModuleCtx *ctx, RedisModuleString *name, Model **model) {
    void *value;
    KeyState state = keyspace_read(ctx, name, model_module_type, &value);
    *model = value;
    if (state == KEY_EMPTY) return "ERR model key is empty";
    return state == KEY_FOUND ? NULL : REDISMODULE_ERRORMSG_WRONGTYPE;
}

void model_store(RedisModuleCtx *ctx, RedisModuleString *name, Model *model) {
    runnable_remember_key(&model->run, name);
    keyspace_store(ctx, name, model_module_type, model, "ai.modelstore");
}

/* When a key is renamed, stores the new name in its model. AI._MODELSCAN shows this name. */
static int on_keyspace_event(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *name) {
    (void)type;
    if (!strcmp(event, "rename_to")) runnable_renamed(ctx, model_module_type, name);
    return REDISMODULE_OK;
}

/* ---- As a command ---- */

static void add_names(ArgList *args, const char *word, const Names *names) {
    arg_list_word(args, word);
    arg_list_number(args, (long long)names->n);
    for (size_t i = 0; i < names->n; i++) arg_list_add(args, names->items[i].data, names->items[i].length);
}

/* Returns the arguments of AI.MODELSTORE after the key. */
static ArgList model_args(const Model *model) {
    ArgList args = arg_list_new(FIXED_ARGS + model->inputs.n + model->outputs.n + model->blob->n);
    arg_list_word(&args, runnable_backend(&model->run));
    arg_list_word(&args, model->run.device);
    if (model->run.tag.length) {
        arg_list_word(&args, "TAG");
        arg_list_add(&args, model->run.tag.data, model->run.tag.length);
    }
    if (model->batch_size) {
        arg_list_word(&args, "BATCHSIZE");
        arg_list_number(&args, model->batch_size);
    }
    if (model->min_batch_size) {
        arg_list_word(&args, "MINBATCHSIZE");
        arg_list_number(&args, model->min_batch_size);
        arg_list_word(&args, "MINBATCHTIMEOUT");
        arg_list_number(&args, model->min_batch_timeout_ms);
    }
    if (model->inputs.n || model->outputs.n) {
        add_names(&args, "INPUTS", &model->inputs);
        add_names(&args, "OUTPUTS", &model->outputs);
    }
    arg_list_word(&args, "BLOB");
    blob_add_to(model->blob, &args);
    return args;
}

void model_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Model *model) {
    ArgList args = model_args(model);
    RedisModule_Replicate(ctx, "AI.MODELSTORE", "sv", key, args.items, args.n);
    arg_list_free(&args);
}

static void model_aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    ArgList args = model_args(value);
    RedisModule_EmitAOF(io, "AI.MODELSTORE", "sv", key, args.items, args.n);
    arg_list_free(&args);
}

/* ---- RDB ---- */

static void model_rdb_save(RedisModuleIO *io, void *value) {
    const Model *model = value;
    RedisModule_SaveUnsigned(io, model->backend);
    runnable_save(io, &model->run);
    RedisModule_SaveUnsigned(io, (uint64_t)model->batch_size);
    RedisModule_SaveUnsigned(io, (uint64_t)model->min_batch_size);
    RedisModule_SaveUnsigned(io, (uint64_t)model->min_batch_timeout_ms);
    names_save(io, &model->inputs);
    names_save(io, &model->outputs);
    blob_save(io, model->blob);
}

static int load_batching(RedisModuleIO *io, Model *model) {
    uint64_t size = RedisModule_LoadUnsigned(io), min = RedisModule_LoadUnsigned(io),
             timeout = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || size > MODEL_MAX_BATCH || min > MODEL_MAX_BATCH || timeout > MODEL_MAX_BATCH)
        return 0;
    if ((min && !size) || (timeout && !min)) return 0;
    model->batch_size = (long long)size;
    model->min_batch_size = (long long)min;
    model->min_batch_timeout_ms = (long long)timeout;
    return 1;
}

static int load_fields(RedisModuleIO *io, Model *model) {
    uint64_t backend = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || (backend != MODEL_ONNX && backend != MODEL_TORCH)) return 0;
    model->backend = (ModelBackend)backend;
    if (!runnable_load(io, &model->run)) return 0;
    if (!load_batching(io, model) || !names_load(io, &model->inputs) || !names_load(io, &model->outputs)) return 0;
    model->blob = blob_load(io);
    return model->blob != NULL;
}

static void *model_rdb_load(RedisModuleIO *io, int encver) {
    if (encver != MODEL_ENCVER) {
        RedisModule_LogIOError(io, "warning", "model has encoding version %d, this module reads version %d", encver,
                               MODEL_ENCVER);
        return NULL;
    }
    Model *model = model_new(MODEL_ONNX, "CPU", NULL);
    if (!load_fields(io, model)) {
        runnable_release(&model->run);
        return NULL;
    }
    return model;
}

/* ---- Other callbacks of the type ---- */

static size_t model_mem_usage(const void *value) {
    const Model *model = value;
    return RedisModule_MallocSize((void *)model) + runnable_memory(&model->run) + blob_memory(model->blob) +
           names_memory(&model->inputs) + names_memory(&model->outputs);
}

static size_t model_free_effort(RedisModuleString *key, const void *value) {
    (void)key;
    return 1 + ((const Model *)value)->blob->size / 4096; /* the number of pages to free */
}

static void model_digest(RedisModuleDigest *digest, void *value) {
    const Model *model = value;
    RedisModule_DigestAddLongLong(digest, model->backend);
    RedisModule_DigestAddStringBuffer(digest, model->run.device, strlen(model->run.device));
    RedisModule_DigestAddStringBuffer(digest, model->run.tag.data, model->run.tag.length);
    RedisModule_DigestAddLongLong(digest, model->batch_size);
    RedisModule_DigestAddLongLong(digest, model->min_batch_size);
    RedisModule_DigestAddLongLong(digest, model->min_batch_timeout_ms);
    names_digest(digest, &model->inputs);
    names_digest(digest, &model->outputs);
    blob_digest(digest, model->blob);
    RedisModule_DigestEndSequence(digest);
}

/* Returns a copy of a model, for COPY. The copy shares the bytes of the model, but has its own ref and statistics. */
static void *model_copy(RedisModuleString *from, RedisModuleString *to, const void *value) {
    (void)from;
    const Model *model = value;
    Model *copy = model_new(model->backend, model->run.device, blob_retain(model->blob));
    text_set(&copy->run.tag, model->run.tag.data, model->run.tag.length);
    copy->batch_size = model->batch_size;
    copy->min_batch_size = model->min_batch_size;
    copy->min_batch_timeout_ms = model->min_batch_timeout_ms;
    copy->inputs = names_copy(&model->inputs);
    copy->outputs = names_copy(&model->outputs);
    runnable_remember_key(&copy->run, to);
    return copy;
}

static void model_free(void *value) { runnable_release(value); }

int model_type_create(RedisModuleCtx *ctx) {
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = model_rdb_load,
        .rdb_save = model_rdb_save,
        .aof_rewrite = model_aof_rewrite,
        .mem_usage = model_mem_usage,
        .free_effort = model_free_effort,
        .digest = model_digest,
        .copy = model_copy,
        .free = model_free,
    };
    model_module_type = RedisModule_CreateDataType(ctx, "AI__MODEL", MODEL_ENCVER, &methods);
    if (!model_module_type) return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_GENERIC, on_keyspace_event);
}

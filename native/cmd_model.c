/* AI.MODELSTORE, AI.MODELSET, AI.MODELGET, AI.MODELDEL, AI._MODELSCAN, AI.INFO, AI.CONFIG, QA.MODELREF, QA.MODEL. */
#include <string.h>

#include "args.h"
#include "jobs.h"
#include "keyspace.h"
#include "link.h"
#include "model.h"
#include "model_args.h"
#include "module.h"
#include "resp.h"

static const char ERR_BLOCKING[] = "ERR Cannot run RedisAI command within a transaction or a LUA script";

/* ---- AI.MODELSTORE, AI.MODELSET: the worker looks at the file before the key is written ---- */

typedef struct LoadJob {
    Model *model; /* NULL once the key has it */
    RedisModuleString *key;
    int db;
} LoadJob;

static Text text_of(RedisModuleString *string) {
    size_t length;
    const char *data = RedisModule_StringPtrLen(string, &length);
    return text_new(data, length);
}

static Names names_of(RedisModuleString **strings, int n) {
    Names names = names_new((size_t)n);
    for (int i = 0; i < n; i++) {
        RedisModule_Free(names.items[i].data);
        names.items[i] = text_of(strings[i]);
    }
    return names;
}

/* NULL: no memory. */
static Model *model_from_spec(const ModelSpec *spec) {
    ModelBlob *blob = model_blob_new(spec->size);
    if (!blob) return NULL;
    char *to = blob->data;
    for (int i = 0; i < spec->n_chunks; i++) {
        size_t length;
        const char *chunk = RedisModule_StringPtrLen(spec->chunks[i], &length);
        memcpy(to, chunk, length);
        to += length;
    }
    Model *model = model_new(spec->backend, spec->device, blob);
    if (spec->tag) {
        RedisModule_Free(model->tag.data);
        model->tag = text_of(spec->tag);
    }
    model->batch_size = spec->batch_size;
    model->min_batch_size = spec->min_batch_size;
    model->min_batch_timeout_ms = spec->min_batch_timeout_ms;
    model->inputs = names_of(spec->inputs, spec->n_inputs);
    model->outputs = names_of(spec->outputs, spec->n_outputs);
    return model;
}

static int load_emit(RedisModuleCtx *ctx, void *data) {
    Model *model = ((LoadJob *)data)->model;
    model->worker_knows = 1;
    RedisModule_ReplyWithLongLong(ctx, (long long)model->ref);
    RedisModule_ReplyWithCString(ctx, model_backend_name(model->backend));
    RedisModule_ReplyWithCString(ctx, model->device);
    RedisModule_ReplyWithStringBuffer(ctx, model->blob->data, model->blob->size);
    return 4;
}

static int read_names(RespReader *reader, Names *names) {
    RespToken token;
    if (resp_next(reader, &token, 0) != 1 || token.type != '*' || token.null || token.integer > MODEL_MAX_NAMES) return 0;
    *names = names_new((size_t)token.integer);
    for (size_t i = 0; i < names->n; i++) {
        if (resp_next(reader, &token, 0) != 1 || token.type != '$' || token.null) return 0;
        RedisModule_Free(names->items[i].data);
        names->items[i] = text_new(token.text, token.length);
    }
    return 1;
}

/* [[input name..],[output name..]] as RESP */
static int read_signature(RedisModuleString *resp, Model *model) {
    RespReader reader;
    RespToken token;
    size_t length;
    reader.at = RedisModule_StringPtrLen(resp, &length);
    reader.end = reader.at + length;
    if (resp_next(&reader, &token, 0) != 1 || token.type != '*' || token.null || token.integer != 2) return 0;
    return read_names(&reader, &model->inputs) && read_names(&reader, &model->outputs) && reader.at == reader.end;
}

static const char *load_finish(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    LoadJob *job = data;
    if (result->status == JOB_FAILED) return NULL;
    if (result->status != JOB_OK || result->argc != 1 || !read_signature(result->argv[0], job->model))
        return "PROTOCOL worker sent an invalid reply to model.load";
    int db = RedisModule_GetSelectedDb(ctx);
    RedisModule_SelectDb(ctx, job->db);
    const char *error = keyspace_may_write(ctx, &job->key, 1, model_key_type());
    if (!error) {
        model_replicate(ctx, job->key, job->model);
        model_store(ctx, job->key, job->model);
        job->model = NULL;
    }
    RedisModule_SelectDb(ctx, db);
    return error;
}

static void load_reply(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    (void)data;
    if (result->status == JOB_FAILED)
        RedisModule_ReplyWithError(ctx, result->error);
    else
        RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static void load_free(void *data) {
    LoadJob *job = data;
    if (job->model) model_release(job->model);
    RedisModule_FreeString(NULL, job->key);
    RedisModule_Free(job);
}

static const JobClass load_class = {.kind = "model.load",
                                    .emit = load_emit,
                                    .finish = load_finish,
                                    .reply = load_reply,
                                    .free = load_free,
                                    .before_ready = 1};

/* From the primary or the AOF the file is known to be good, and there may be no worker. */
static int store_directly(RedisModuleCtx *ctx, RedisModuleString *key, Model *model) {
    model_replicate(ctx, key, model);
    model_store(ctx, key, model);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int store_model(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int old_form) {
    Model *model;
    ModelSpec spec;
    int flags = RedisModule_GetContextFlags(ctx);
    int trusted = (flags & (REDISMODULE_CTX_FLAGS_REPLICATED | REDISMODULE_CTX_FLAGS_LOADING)) != 0;
    const char *error = keyspace_check_types(ctx, &argv[1], 1, model_key_type());
    if (!error)
        error = old_form ? model_args_set(&spec, argv + 2, argc - 2) : model_args_store(&spec, argv + 2, argc - 2, trusted);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (!trusted && module_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_BLOCKING);
    model = model_from_spec(&spec);
    if (!model) return RedisModule_ReplyWithError(ctx, "OOM not enough memory for the model");
    if (trusted) return store_directly(ctx, argv[1], model);
    LoadJob *job = RedisModule_Calloc(1, sizeof(*job));
    job->model = model;
    job->key = RedisModule_CreateStringFromString(NULL, argv[1]);
    job->db = RedisModule_GetSelectedDb(ctx);
    jobs_submit_blocking(ctx, &load_class, job, 0);
    return REDISMODULE_OK;
}

/* AI.MODELSTORE key backend device [TAG t] [BATCHSIZE n [MINBATCHSIZE m [MINBATCHTIMEOUT ms]]] BLOB chunk.. */
static int AI_MODELSTORE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 6) return RedisModule_WrongArity(ctx);
    return store_model(ctx, argv, argc, 0);
}

static int AI_MODELSET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    return store_model(ctx, argv, argc, 1);
}

/* ---- AI.MODELGET ---- */

static void reply_names(RedisModuleCtx *ctx, const char *label, const Names *names) {
    RedisModule_ReplyWithCString(ctx, label);
    RedisModule_ReplyWithArray(ctx, (long)names->n);
    for (size_t i = 0; i < names->n; i++)
        RedisModule_ReplyWithStringBuffer(ctx, names->items[i].data, names->items[i].length);
}

static void reply_number(RedisModuleCtx *ctx, const char *label, long long number) {
    RedisModule_ReplyWithCString(ctx, label);
    RedisModule_ReplyWithLongLong(ctx, number);
}

static void reply_text(RedisModuleCtx *ctx, const char *label, const char *text, size_t length) {
    RedisModule_ReplyWithCString(ctx, label);
    RedisModule_ReplyWithStringBuffer(ctx, text, length);
}

/* One bulk, or pieces: a string of more than proto-max-bulk-len cannot be sent back as one argument. */
static void reply_blob(RedisModuleCtx *ctx, const ModelBlob *blob) {
    size_t piece = (size_t)model_chunk_size();
    if (blob->size < piece) {
        RedisModule_ReplyWithStringBuffer(ctx, blob->data, blob->size);
        return;
    }
    size_t pieces = blob->size / piece + 1;
    RedisModule_ReplyWithArray(ctx, (long)pieces);
    for (size_t i = 0; i < pieces; i++) {
        size_t left = blob->size - i * piece;
        RedisModule_ReplyWithStringBuffer(ctx, blob->data + i * piece, left < piece ? left : piece);
    }
}

static void reply_meta(RedisModuleCtx *ctx, const Model *model) {
    const char *backend = model_backend_name(model->backend);
    reply_text(ctx, "backend", backend, strlen(backend));
    reply_text(ctx, "device", model->device, strlen(model->device));
    reply_text(ctx, "tag", model->tag.data, model->tag.length);
    reply_number(ctx, "batchsize", model->batch_size);
    reply_number(ctx, "minbatchsize", model->min_batch_size);
    reply_names(ctx, "inputs", &model->inputs);
    reply_names(ctx, "outputs", &model->outputs);
    reply_number(ctx, "minbatchtimeout", model->min_batch_timeout_ms);
}

/* AI.MODELGET key [META] [BLOB] */
static int AI_MODELGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 4) return RedisModule_WrongArity(ctx);
    const Model *model = model_read_or_reply(ctx, argv[1]);
    if (!model) return REDISMODULE_OK;
    int meta = argc == 2, blob = argc == 2;
    for (int i = 2; i < argc; i++) {
        if (arg_is(argv[i], "META"))
            meta = 1;
        else if (arg_is(argv[i], "BLOB"))
            blob = 1;
        else
            return RedisModule_ReplyWithError(ctx, "ERR Invalid argument, expected META or BLOB");
    }
    if (meta) {
        RedisModule_ReplyWithArray(ctx, blob ? 18 : 16);
        reply_meta(ctx, model);
        if (blob) RedisModule_ReplyWithCString(ctx, "blob");
    }
    if (blob) reply_blob(ctx, model->blob);
    return REDISMODULE_OK;
}

/* ---- AI.MODELDEL, AI._MODELSCAN ---- */

static int AI_MODELDEL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    if (!model_read_or_reply(ctx, argv[1])) return REDISMODULE_OK;
    RedisModuleKey *key = RedisModule_OpenKey(ctx, argv[1], REDISMODULE_READ | REDISMODULE_WRITE);
    RedisModule_DeleteKey(key);
    RedisModule_CloseKey(key);
    RedisModule_SignalModifiedKey(ctx, argv[1]);
    RedisModule_NotifyKeyspaceEvent(ctx, REDISMODULE_NOTIFY_GENERIC, "del", argv[1]);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

typedef struct Scan {
    RedisModuleCtx *ctx;
    long found;
} Scan;

/* Models that only a job still holds, and those of other databases, are not at their key. */
static void scan_visit(Model *model, void *data) {
    Scan *scan = data;
    RedisModuleString *name = RedisModule_CreateString(scan->ctx, model->key.data, model->key.length);
    void *value;
    if (keyspace_peek(scan->ctx, name, model_key_type(), &value) == KEY_FOUND && value == model) {
        RedisModule_ReplyWithArray(scan->ctx, 2);
        RedisModule_ReplyWithStringBuffer(scan->ctx, model->key.data, model->key.length);
        RedisModule_ReplyWithStringBuffer(scan->ctx, model->tag.data, model->tag.length);
        scan->found++;
    }
    RedisModule_FreeString(scan->ctx, name);
}

static int AI_MODELSCAN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    Scan scan = {ctx, 0};
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    model_each(scan_visit, &scan);
    RedisModule_ReplySetArrayLength(ctx, scan.found);
    return REDISMODULE_OK;
}

/* ---- AI.INFO ---- */

/* AI.INFO key [RESETSTAT] */
static int AI_INFO_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 3) return RedisModule_WrongArity(ctx);
    void *value;
    if (keyspace_read(ctx, argv[1], model_key_type(), &value) != KEY_FOUND)
        return RedisModule_ReplyWithError(ctx, "ERR cannot find run info for key");
    Model *model = value;
    if (argc == 3) {
        if (!arg_is(argv[2], "RESETSTAT")) return RedisModule_ReplyWithError(ctx, "ERR unsupported subcommand");
        model->stats = (ModelStats){0, 0, 0, 0};
        return RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
    size_t length;
    const char *name = RedisModule_StringPtrLen(argv[1], &length), *backend = model_backend_name(model->backend);
    RedisModule_ReplyWithArray(ctx, 18);
    reply_text(ctx, "key", name, length);
    reply_text(ctx, "type", "MODEL", 5);
    reply_text(ctx, "backend", backend, strlen(backend));
    reply_text(ctx, "device", model->device, strlen(model->device));
    reply_text(ctx, "tag", model->tag.data, model->tag.length);
    reply_number(ctx, "duration", model->stats.duration_us);
    reply_number(ctx, "samples", model->stats.samples);
    reply_number(ctx, "calls", model->stats.calls);
    reply_number(ctx, "errors", model->stats.errors);
    return REDISMODULE_OK;
}

/* ---- AI.CONFIG ---- */

static RedisModuleString *backends_path; /* kept for clients that set and read it: backends are part of the worker */

static int config_get(RedisModuleCtx *ctx, RedisModuleString *name) {
    if (arg_is(name, "MODEL_CHUNK_SIZE")) return RedisModule_ReplyWithLongLong(ctx, model_chunk_size());
    if (arg_is(name, "BACKENDSPATH"))
        return backends_path ? RedisModule_ReplyWithString(ctx, backends_path) : RedisModule_ReplyWithCString(ctx, "");
    return RedisModule_ReplyWithNull(ctx);
}

static int config_load_backend(RedisModuleCtx *ctx, RedisModuleString *name) {
    static const char *const known[] = {"ONNX", "TORCH", "TF", "TFLITE"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (arg_is(name, known[i]))
            return RedisModule_ReplyWithError(ctx, "ERR error loading backend: backends are part of the shard worker");
    return RedisModule_ReplyWithError(ctx, "ERR unsupported backend");
}

static int config_set_chunk_size(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long bytes;
    if (argc < 3) return RedisModule_ReplyWithError(ctx, "ERR MODEL_CHUNK_SIZE: missing chunk size");
    if (!arg_count(argv[2], 1LL << 40, &bytes) || bytes == 0)
        return RedisModule_ReplyWithError(ctx, "ERR MODEL_CHUNK_SIZE: invalid chunk size");
    model_set_chunk_size(bytes);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* AI.CONFIG GET name | MODEL_CHUNK_SIZE n | BACKENDSPATH path | LOADBACKEND name path */
static int AI_CONFIG_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    if (arg_is(argv[1], "GET")) return argc == 3 ? config_get(ctx, argv[2]) : RedisModule_WrongArity(ctx);
    if (arg_is(argv[1], "MODEL_CHUNK_SIZE")) return config_set_chunk_size(ctx, argv, argc);
    if (arg_is(argv[1], "LOADBACKEND")) return argc == 4 ? config_load_backend(ctx, argv[2]) : RedisModule_WrongArity(ctx);
    if (!arg_is(argv[1], "BACKENDSPATH")) return RedisModule_ReplyWithError(ctx, "ERR unsupported subcommand");
    if (argc < 3) return RedisModule_ReplyWithError(ctx, "ERR BACKENDSPATH: missing path argument");
    if (backends_path) RedisModule_FreeString(NULL, backends_path);
    backends_path = RedisModule_CreateStringFromString(NULL, argv[2]);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- for the worker ---- */

/* QA.MODELREF key */
static int QA_MODELREF_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    if (!link_require(ctx, "QA.MODELREF")) return REDISMODULE_OK;
    Model *model = model_read_or_reply(ctx, argv[1]);
    if (!model) return REDISMODULE_OK;
    model->worker_knows = 1;
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithLongLong(ctx, (long long)model->ref);
    RedisModule_ReplyWithCString(ctx, model_backend_name(model->backend));
    return RedisModule_ReplyWithCString(ctx, model->device);
}

/* QA.MODEL ref */
static int QA_MODEL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long ref;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    if (!link_require(ctx, "QA.MODEL")) return REDISMODULE_OK;
    if (RedisModule_StringToLongLong(argv[1], &ref) != REDISMODULE_OK || ref < 1)
        return RedisModule_ReplyWithError(ctx, "ERR model ref must be a positive integer");
    Model *model = model_by_ref((uint64_t)ref);
    if (!model) {
        RedisModuleString *error = RedisModule_CreateStringPrintf(ctx, "ERR no such model: %lld", ref);
        RedisModule_ReplyWithError(ctx, RedisModule_StringPtrLen(error, NULL));
        RedisModule_FreeString(ctx, error);
        return REDISMODULE_OK;
    }
    model->worker_knows = 1;
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithCString(ctx, model_backend_name(model->backend));
    RedisModule_ReplyWithCString(ctx, model->device);
    RedisModule_ReplyWithStringBuffer(ctx, model->blob->data, model->blob->size);
    model_release(model);
    return REDISMODULE_OK;
}

int model_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec commands[] = {
        {"AI.MODELSTORE", AI_MODELSTORE_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"AI.MODELSET", AI_MODELSET_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"AI.MODELGET", AI_MODELGET_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"AI.MODELDEL", AI_MODELDEL_RedisCommand, "write", 1, 1, 1, NULL},
        {"AI._MODELSCAN", AI_MODELSCAN_RedisCommand, "readonly", 0, 0, 0, NULL},
        {"AI.INFO", AI_INFO_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"AI.CONFIG", AI_CONFIG_RedisCommand, "write", 0, 0, 0, NULL},
        {"QA.MODELREF", QA_MODELREF_RedisCommand, LINK_COMMAND_FLAGS, 1, 1, 1, NULL},
        {"QA.MODEL", QA_MODEL_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, NULL},
    };
    if (model_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (module_register(ctx, commands, sizeof(commands) / sizeof(commands[0])) != REDISMODULE_OK) return REDISMODULE_ERR;
    return model_run_on_load(ctx);
}

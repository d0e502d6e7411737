/* AI.MODELSTORE, AI.MODELSET, AI.MODELGET and AI.MODELDEL for clients. QA.MODELREF, QA.MODEL, QA.MODELPART and QA.TRIAL
 * for the worker.
 *
 * Storing a model is a job. First the worker loads the model's file and reports the names of the model's inputs and
 * outputs. Then the module writes the key. The job owns the model until the key is written. The job also has a
 * reference to the file's bytes (blob.h). */
#include "models/cmd_model.h"

#include <stdio.h>
#include <string.h>

#include "jobs/jobs.h"
#include "models/model.h"
#include "models/model_args.h"
#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/keyspace.h"
#include "server/links.h"
#include "server/pairs.h"
#include "server/resp.h"

/* ---- AI.MODELSTORE, AI.MODELSET ---- */

typedef struct LoadJob {
    Model *model; /* NULL after it was stored in the key */
    Blob *blob;   /* the job's reference, until the client's command has ended */
    RedisModuleString *key;
    int db;
} LoadJob;

static Model *model_from_spec(const ModelSpec *spec) {
    Model *model = model_new(spec->backend, spec->device, blob_of(spec->chunks, (size_t)spec->n_chunks));
    if (spec->tag) {
        RedisModule_Free(model->run.tag.data);
        model->run.tag = text_of(spec->tag);
    }
    model->batch_size = spec->batch_size;
    model->min_batch_size = spec->min_batch_size;
    model->min_batch_timeout_ms = spec->min_batch_timeout_ms;
    model->inputs = names_of(spec->inputs, spec->n_inputs);
    model->outputs = names_of(spec->outputs, spec->n_outputs);
    return model;
}

static int emit_load(RedisModuleCtx *ctx, void *data) {
    Model *model = ((LoadJob *)data)->model;
    model->run.worker_knows = 1;
    RedisModule_ReplyWithLongLong(ctx, (long long)model->run.ref);
    RedisModule_ReplyWithCString(ctx, runnable_backend(&model->run));
    RedisModule_ReplyWithCString(ctx, model->run.device);
    RedisModule_ReplyWithLongLong(ctx, (long long)model->blob->size);
    return 4;
}

static int read_names(RespReader *reader, Names *names) {
    RespToken token;
    if (resp_next(reader, &token, 0) != 1 || token.type != '*' || token.null || token.integer > NAMES_MAX) return 0;
    names_free(names);
    *names = names_new((size_t)token.integer);
    for (size_t i = 0; i < names->n; i++) {
        if (resp_next(reader, &token, 0) != 1 || token.type != '$' || token.null || token.length > TEXT_MAX) return 0;
        text_set(&names->items[i], token.text, token.length);
    }
    return 1;
}

/* Reads the names of inputs and outputs into the model. `resp` is [[input name..],[output name..]] as RESP. 0: invalid.
 */
static int read_signature(RedisModuleString *resp, Model *model) {
    RespReader reader;
    RespToken token;
    size_t length;
    reader.at = RedisModule_StringPtrLen(resp, &length);
    reader.end = reader.at + length;
    if (resp_next(&reader, &token, 0) != 1 || token.type != '*' || token.null || token.integer != 2) return 0;
    return read_names(&reader, &model->inputs) && read_names(&reader, &model->outputs) && reader.at == reader.end;
}

static const char *finish_load(RedisModuleCtx *ctx, void *data, const JobResult *result) {
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

static void free_load(void *data) {
    LoadJob *job = data;
    if (job->model) runnable_release(&job->model->run);
    blob_release_later(job->blob);
    RedisModule_FreeString(NULL, job->key);
    RedisModule_Free(job);
}

static const JobClass LOAD = {.kind = "model.load",
                              .emit = emit_load,
                              .finish = finish_load,
                              .reply = job_ok_reply,
                              .free = free_load,
                              .before_ready = 1};

/* Stores a model from the primary or the AOF. This needs no worker, because a worker has already loaded the model. */
static int store_directly(RedisModuleCtx *ctx, RedisModuleString *key, Model *model) {
    Blob *blob = blob_retain(model->blob);
    model_replicate(ctx, key, model);
    model_store(ctx, key, model);
    blob_release_later(blob);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int store_model(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int old_form) {
    Model *model;
    ModelSpec spec;
    int trusted = caller_is_log(ctx);
    const char *error = keyspace_check_types(ctx, &argv[1], 1, model_key_type());
    if (!error)
        error = old_form ? model_args_set(&spec, argv + 2, argc - 2)
                         : model_args_store(&spec, argv + 2, argc - 2, trusted);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (!trusted && caller_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_BLOCKING_DENIED);
    model = model_from_spec(&spec);
    if (trusted) return store_directly(ctx, argv[1], model);
    LoadJob *job = RedisModule_Calloc(1, sizeof *job);
    job->model = model;
    job->blob = blob_retain(model->blob);
    job->key = RedisModule_CreateStringFromString(NULL, argv[1]);
    runnable_remember_key(&model->run, argv[1]);
    job->db = RedisModule_GetSelectedDb(ctx);
    jobs_submit_blocking(ctx, &LOAD, job, 0);
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

/* The most pieces in a reply of AI.MODELGET (even if MODEL_CHUNK_SIZE is small), and the most bytes in a reply of
 * QA.MODELPART. */
enum { MAX_PIECES = 1024, MAX_PART = 4 << 20 };

/* Returns the size of the pieces in the reply of AI.MODELGET. 0: the reply has the file as one bulk string. With the
 * default MODEL_CHUNK_SIZE (511 MiB), a client can send each piece back as one argument, because the default of the
 * limit proto-max-bulk-len is 512 MiB. */
static size_t reply_piece(const Blob *blob) {
    size_t piece = (size_t)config.model_chunk_size, least = blob->size / MAX_PIECES + 1;
    if (piece < least) piece = least;
    return blob->size < piece ? 0 : piece;
}

static void reply_blob(RedisModuleCtx *ctx, const Blob *blob, char *room) {
    size_t piece = reply_piece(blob);
    if (!piece) {
        RedisModule_ReplyWithStringBuffer(ctx, blob_part(blob, 0, blob->size, room), blob->size);
        return;
    }
    size_t pieces = blob->size / piece + 1;
    RedisModule_ReplyWithArray(ctx, (long)pieces);
    for (size_t at = 0; at < blob->size; at += piece) {
        size_t left = blob->size - at, length = left < piece ? left : piece;
        RedisModule_ReplyWithStringBuffer(ctx, blob_part(blob, at, length, room), length);
    }
    if (blob->size % piece == 0) RedisModule_ReplyWithStringBuffer(ctx, "", 0);
}

static void reply_meta(RedisModuleCtx *ctx, const Model *model) {
    const char *backend = runnable_backend(&model->run);
    pair_text(ctx, "backend", backend, strlen(backend));
    pair_text(ctx, "device", model->run.device, strlen(model->run.device));
    pair_text(ctx, "tag", model->run.tag.data, model->run.tag.length);
    pair_number(ctx, "batchsize", model->batch_size);
    pair_number(ctx, "minbatchsize", model->min_batch_size);
    RedisModule_ReplyWithCString(ctx, "inputs");
    names_reply(ctx, &model->inputs);
    RedisModule_ReplyWithCString(ctx, "outputs");
    names_reply(ctx, &model->outputs);
    pair_number(ctx, "minbatchtimeout", model->min_batch_timeout_ms);
}

/* AI.MODELGET key [META] [BLOB] */
static int AI_MODELGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 4) return RedisModule_WrongArity(ctx);
    Model *model;
    const char *error = model_read(ctx, argv[1], &model);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    int meta = argc == 2, blob = argc == 2;
    for (int i = 2; i < argc; i++) {
        if (arg_is(argv[i], "META")) meta = 1;
        else if (arg_is(argv[i], "BLOB")) blob = 1;
        else return RedisModule_ReplyWithError(ctx, "ERR Invalid argument, expected META or BLOB");
    }
    char *room = NULL;
    size_t piece = reply_piece(model->blob);
    if (blob && model->blob->n > 1 && !(room = RedisModule_TryAlloc(piece ? piece : model->blob->size)))
        return RedisModule_ReplyWithError(
            ctx, "OOM not enough memory to join the chunks of the model, lower MODEL_CHUNK_SIZE");
    if (meta) {
        RedisModule_ReplyWithArray(ctx, blob ? 18 : 16);
        reply_meta(ctx, model);
        if (blob) RedisModule_ReplyWithCString(ctx, "blob");
    }
    if (blob) reply_blob(ctx, model->blob, room);
    RedisModule_Free(room);
    return REDISMODULE_OK;
}

/* ---- AI.MODELDEL ---- */

static int AI_MODELDEL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Model *model;
    const char *error = model_read(ctx, argv[1], &model);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    keyspace_delete(ctx, argv[1]);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- For the worker ---- */

/* QA.MODELREF key */
static int QA_MODELREF_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.MODELREF")) return REDISMODULE_OK;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Model *model;
    const char *error = model_read(ctx, argv[1], &model);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    model->run.worker_knows = 1;
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithLongLong(ctx, (long long)model->run.ref);
    RedisModule_ReplyWithCString(ctx, runnable_backend(&model->run));
    return RedisModule_ReplyWithCString(ctx, model->run.device);
}

/* QA.MODEL ref */
static int QA_MODEL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.MODEL")) return REDISMODULE_OK;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Model *model = (Model *)runnable_by_ref_or_reply(ctx, &model_class, argv[1]);
    if (!model) return REDISMODULE_OK;
    model->run.worker_knows = 1;
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithCString(ctx, runnable_backend(&model->run));
    RedisModule_ReplyWithCString(ctx, model->run.device);
    RedisModule_ReplyWithLongLong(ctx, (long long)model->blob->size);
    runnable_release(&model->run);
    return REDISMODULE_OK;
}

static int reply_trial(RedisModuleCtx *ctx, Runnable *runnable) {
    RedisModule_ReplyWithArray(ctx, 4);
    RedisModule_ReplyWithStringBuffer(ctx, runnable->key.data, runnable->key.length);
    runnable_reply_trial(ctx, runnable);
    runnable_release(runnable);
    return REDISMODULE_OK;
}

/* QA.TRIAL ref [PASSED or SUCCEEDED or FAILED reason] */
static int QA_TRIAL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.TRIAL")) return REDISMODULE_OK;
    int passed = argc == 3 && arg_is(argv[2], "PASSED"), succeeded = argc == 3 && arg_is(argv[2], "SUCCEEDED");
    int failed = argc == 4 && arg_is(argv[2], "FAILED");
    if (argc != 2 && !passed && !succeeded && !failed) return RedisModule_WrongArity(ctx);
    Runnable *runnable = runnable_by_ref_or_reply(ctx, NULL, argv[1]);
    if (!runnable) return REDISMODULE_OK;
    if (passed) runnable->passed = 1;
    if (succeeded) runnable->failures = 0;
    if (failed) {
        size_t length;
        const char *reason = RedisModule_StringPtrLen(argv[3], &length);
        text_set(&runnable->failure, reason, length);
        runnable->failures++;
    }
    return reply_trial(ctx, runnable);
}

static void reply_part(RedisModuleCtx *ctx, const Blob *blob, size_t at, size_t length) {
    char *room = NULL;
    if (blob->n > 1 && !(room = RedisModule_TryAlloc(length))) {
        RedisModule_ReplyWithError(ctx, "OOM not enough memory to join the chunks of the model");
        return;
    }
    RedisModule_ReplyWithStringBuffer(ctx, blob_part(blob, at, length, room), length);
    RedisModule_Free(room);
}

/* QA.MODELPART ref offset length: replies with `length` bytes, or fewer at the end. Parts are small, so that the server
 * can serve other clients between two parts. */
static int QA_MODELPART_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long offset, length;
    char error[128];
    if (!link_require(ctx, "QA.MODELPART")) return REDISMODULE_OK;
    if (argc != 4) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[3], &length) != REDISMODULE_OK || length < 1 || length > MAX_PART) {
        snprintf(error, sizeof error, "ERR length must be between 1 and %d", MAX_PART);
        return RedisModule_ReplyWithError(ctx, error);
    }
    Model *model = (Model *)runnable_by_ref_or_reply(ctx, &model_class, argv[1]);
    if (!model) return REDISMODULE_OK;
    long long size = (long long)model->blob->size;
    if (RedisModule_StringToLongLong(argv[2], &offset) != REDISMODULE_OK || offset < 0 || offset >= size) {
        snprintf(error, sizeof error, "ERR offset must be between 0 and %lld", size - 1);
        RedisModule_ReplyWithError(ctx, error);
    } else {
        reply_part(ctx, model->blob, (size_t)offset, (size_t)(length < size - offset ? length : size - offset));
    }
    runnable_release(&model->run);
    return REDISMODULE_OK;
}

int model_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.MODELSTORE", AI_MODELSTORE_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"AI.MODELSET", AI_MODELSET_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"AI.MODELGET", AI_MODELGET_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"AI.MODELDEL", AI_MODELDEL_RedisCommand, "write", 1, 1, 1, NULL},
        {"QA.MODELREF", QA_MODELREF_RedisCommand, LINK_COMMAND_FLAGS, 1, 1, 1, NULL},
        {"QA.MODEL", QA_MODEL_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, NULL},
        {"QA.MODELPART", QA_MODELPART_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, NULL},
        {"QA.TRIAL", QA_TRIAL_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, NULL},
    };
    if (model_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

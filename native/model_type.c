/* The AI__MODEL data type: keys, RDB, AOF, replication. */
#include <string.h>

#include "keyspace.h"
#include "model.h"

/* Version 5 is backend number, device, tag, batch options, names, bytes in pieces. RedisAI's versions 0 to 4 begin with the backend and
 * device in other encodings, and hold runtimes' files we cannot run: they are refused. */
#define MODEL_ENCVER 5
#define SAVED_PIECE (64LL << 20)
#define MAX_TEXT (1ULL << 20) /* tag, name: far above anything sensible */
#define FIXED_ARGS 24
#define DEFAULT_CHUNK_SIZE (511LL << 20)

static RedisModuleType *model_module_type;
static long long chunk_size = DEFAULT_CHUNK_SIZE;

RedisModuleType *model_key_type(void) {
    return model_module_type;
}

long long model_chunk_size(void) {
    return chunk_size;
}

void model_set_chunk_size(long long bytes) {
    chunk_size = bytes;
}

/* ---- keys ---- */

Model *model_read_or_reply(RedisModuleCtx *ctx, RedisModuleString *name) {
    void *value;
    switch (keyspace_read(ctx, name, model_module_type, &value)) {
    case KEY_EMPTY: RedisModule_ReplyWithError(ctx, "ERR model key is empty"); break;
    case KEY_WRONGTYPE: RedisModule_ReplyWithError(ctx, REDISMODULE_ERRORMSG_WRONGTYPE); break;
    case KEY_FOUND: break;
    }
    return value;
}

void model_store(RedisModuleCtx *ctx, RedisModuleString *name, Model *model) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(name, &length);
    model_remember_key(model, text, length);
    keyspace_store(ctx, name, model_module_type, model, "ai.modelstore");
}

/* A renamed key keeps its value; _MODELSCAN must tell the new name. */
static int on_keyspace_event(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *name) {
    (void)type;
    if (strcmp(event, "rename_to")) return REDISMODULE_OK;
    void *value;
    if (keyspace_peek(ctx, name, model_module_type, &value) != KEY_FOUND) return REDISMODULE_OK;
    size_t length;
    const char *text = RedisModule_StringPtrLen(name, &length);
    model_remember_key(value, text, length);
    return REDISMODULE_OK;
}

/* ---- as a command ---- */

typedef struct Args {
    RedisModuleString **items;
    size_t n;
} Args;

static void add(Args *args, const char *text, size_t length) {
    args->items[args->n++] = RedisModule_CreateString(NULL, text, length);
}

static void add_word(Args *args, const char *word) {
    add(args, word, strlen(word));
}

static void add_number(Args *args, long long number) {
    args->items[args->n++] = RedisModule_CreateStringFromLongLong(NULL, number);
}

static void add_names(Args *args, const char *word, const Names *names) {
    add_word(args, word);
    add_number(args, (long long)names->n);
    for (size_t i = 0; i < names->n; i++) add(args, names->items[i].data, names->items[i].length);
}

/* The arguments of AI.MODELSTORE after the key. The size of its chunks is no client's affair (AI.CONFIG): a tiny one would make
 * millions of arguments of one model. */
static Args model_args(const Model *model) {
    size_t size = model->blob->size, piece = SAVED_PIECE;
    size_t n = FIXED_ARGS + model->inputs.n + model->outputs.n + size / piece + 1;
    Args args = {RedisModule_Alloc(n * sizeof(*args.items)), 0};
    add_word(&args, model_backend_name(model->backend));
    add_word(&args, model->device);
    if (model->tag.length) {
        add_word(&args, "TAG");
        add(&args, model->tag.data, model->tag.length);
    }
    if (model->batch_size) {
        add_word(&args, "BATCHSIZE");
        add_number(&args, model->batch_size);
    }
    if (model->min_batch_size) {
        add_word(&args, "MINBATCHSIZE");
        add_number(&args, model->min_batch_size);
        add_word(&args, "MINBATCHTIMEOUT");
        add_number(&args, model->min_batch_timeout_ms);
    }
    if (model->inputs.n || model->outputs.n) {
        add_names(&args, "INPUTS", &model->inputs);
        add_names(&args, "OUTPUTS", &model->outputs);
    }
    add_word(&args, "BLOB");
    for (size_t at = 0; at < size; at += piece) add(&args, model->blob->data + at, size - at < piece ? size - at : piece);
    return args;
}

static void free_args(Args *args) {
    for (size_t i = 0; i < args->n; i++) RedisModule_FreeString(NULL, args->items[i]);
    RedisModule_Free(args->items);
}

void model_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Model *model) {
    Args args = model_args(model);
    RedisModule_Replicate(ctx, "AI.MODELSTORE", "sv", key, args.items, args.n);
    free_args(&args);
}

static void model_aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    Args args = model_args(value);
    RedisModule_EmitAOF(io, "AI.MODELSTORE", "sv", key, args.items, args.n);
    free_args(&args);
}

/* ---- RDB ---- */

static void save_names(RedisModuleIO *io, const Names *names) {
    RedisModule_SaveUnsigned(io, names->n);
    for (size_t i = 0; i < names->n; i++) RedisModule_SaveStringBuffer(io, names->items[i].data, names->items[i].length);
}

static void model_rdb_save(RedisModuleIO *io, void *value) {
    const Model *model = value;
    RedisModule_SaveUnsigned(io, model->backend);
    RedisModule_SaveStringBuffer(io, model->device, strlen(model->device));
    RedisModule_SaveStringBuffer(io, model->tag.data, model->tag.length);
    RedisModule_SaveUnsigned(io, (uint64_t)model->batch_size);
    RedisModule_SaveUnsigned(io, (uint64_t)model->min_batch_size);
    RedisModule_SaveUnsigned(io, (uint64_t)model->min_batch_timeout_ms);
    save_names(io, &model->inputs);
    save_names(io, &model->outputs);
    RedisModule_SaveUnsigned(io, model->blob->size);
    for (size_t at = 0; at < model->blob->size; at += SAVED_PIECE) {
        size_t left = model->blob->size - at;
        RedisModule_SaveStringBuffer(io, model->blob->data + at, left < SAVED_PIECE ? left : SAVED_PIECE);
    }
}

static int load_text(RedisModuleIO *io, uint64_t max, Text *text) {
    size_t length;
    char *data = RedisModule_LoadStringBuffer(io, &length);
    if (!data) return 0;
    int good = !RedisModule_IsIOError(io) && length <= max;
    if (good) *text = text_new(data, length);
    RedisModule_Free(data);
    return good;
}

static int load_names(RedisModuleIO *io, Names *names) {
    uint64_t n = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || n > MODEL_MAX_NAMES) return 0;
    *names = names_new(n);
    for (size_t i = 0; i < names->n; i++) {
        RedisModule_Free(names->items[i].data);
        names->items[i].data = NULL;
        if (!load_text(io, MAX_TEXT, &names->items[i])) {
            names->items[i] = text_new("", 0);
            return 0;
        }
    }
    return 1;
}

/* The pieces must add up to the size exactly. The memory for all grows with what was really read. */
static ModelBlob *load_blob(RedisModuleIO *io) {
    uint64_t size = RedisModule_LoadUnsigned(io), at = 0;
    if (RedisModule_IsIOError(io) || size == 0 || size > SIZE_MAX / 2) return NULL;
    ModelBlob *blob = NULL;
    while (at < size) {
        size_t length;
        char *piece = RedisModule_LoadStringBuffer(io, &length);
        if (!piece) break;
        uint64_t left = size - at;
        int good = !RedisModule_IsIOError(io) && length == (left < SAVED_PIECE ? left : SAVED_PIECE);
        if (good && !blob) blob = model_blob_new(size); /* only after a first whole piece */
        if (good && blob) memcpy(blob->data + at, piece, length);
        RedisModule_Free(piece);
        if (!good || !blob) break;
        at += length;
    }
    if (at == size) return blob;
    if (blob) model_blob_release(blob);
    return NULL;
}

static int load_batching(RedisModuleIO *io, Model *model) {
    uint64_t size = RedisModule_LoadUnsigned(io), min = RedisModule_LoadUnsigned(io), timeout = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || size > MODEL_MAX_BATCH || min > MODEL_MAX_BATCH || timeout > MODEL_MAX_BATCH) return 0;
    if ((min && !size) || (timeout && !min)) return 0;
    model->batch_size = (long long)size;
    model->min_batch_size = (long long)min;
    model->min_batch_timeout_ms = (long long)timeout;
    return 1;
}

static int load_fields(RedisModuleIO *io, Model *model) {
    Text device;
    uint64_t backend = RedisModule_LoadUnsigned(io);
    if (RedisModule_IsIOError(io) || (backend != MODEL_ONNX && backend != MODEL_TORCH)) return 0;
    model->backend = (ModelBackend)backend;
    if (!load_text(io, MODEL_MAX_DEVICE, &device)) return 0;
    int good = model_device_parse(device.data, device.length, model->device);
    RedisModule_Free(device.data);
    if (!good) return 0;
    Text tag;
    if (!load_text(io, MAX_TEXT, &tag)) return 0;
    RedisModule_Free(model->tag.data);
    model->tag = tag;
    if (!load_batching(io, model) || !load_names(io, &model->inputs) || !load_names(io, &model->outputs)) return 0;
    ModelBlob *blob = load_blob(io);
    if (!blob) return 0;
    model_blob_release(model->blob);
    model->blob = blob;
    return 1;
}

static void *model_rdb_load(RedisModuleIO *io, int encver) {
    if (encver != MODEL_ENCVER) {
        RedisModule_LogIOError(io, "warning", "model has encoding version %d, this module reads version %d", encver,
                               MODEL_ENCVER);
        return NULL;
    }
    ModelBlob *empty = model_blob_new(1);
    if (!empty) return NULL;
    Model *model = model_new(MODEL_ONNX, "CPU", empty);
    if (!load_fields(io, model)) {
        model_release(model);
        return NULL;
    }
    const RedisModuleString *name = RedisModule_GetKeyNameFromIO(io);
    if (name) {
        size_t length;
        const char *text = RedisModule_StringPtrLen(name, &length);
        model_remember_key(model, text, length);
    }
    return model;
}

/* ---- other callbacks of the type ---- */

static size_t names_memory(const Names *names) {
    size_t bytes = names->n ? RedisModule_MallocSize(names->items) : 0;
    for (size_t i = 0; i < names->n; i++) bytes += RedisModule_MallocSize(names->items[i].data);
    return bytes;
}

static size_t model_mem_usage(const void *value) {
    const Model *model = value;
    return RedisModule_MallocSize((void *)model) + RedisModule_MallocSize(model->tag.data) +
           RedisModule_MallocSize(model->key.data) + RedisModule_MallocSize(model->blob) +
           RedisModule_MallocSize(model->blob->data) + names_memory(&model->inputs) + names_memory(&model->outputs);
}

static size_t model_free_effort(RedisModuleString *key, const void *value) {
    (void)key;
    return 1 + ((const Model *)value)->blob->size / 4096; /* pages to give back */
}

static void digest_names(RedisModuleDigest *digest, const Names *names) {
    RedisModule_DigestAddLongLong(digest, (long long)names->n);
    for (size_t i = 0; i < names->n; i++)
        RedisModule_DigestAddStringBuffer(digest, names->items[i].data, names->items[i].length);
}

static void model_digest(RedisModuleDigest *digest, void *value) {
    const Model *model = value;
    RedisModule_DigestAddLongLong(digest, model->backend);
    RedisModule_DigestAddStringBuffer(digest, model->device, strlen(model->device));
    RedisModule_DigestAddStringBuffer(digest, model->tag.data, model->tag.length);
    RedisModule_DigestAddLongLong(digest, model->batch_size);
    RedisModule_DigestAddLongLong(digest, model->min_batch_size);
    RedisModule_DigestAddLongLong(digest, model->min_batch_timeout_ms);
    digest_names(digest, &model->inputs);
    digest_names(digest, &model->outputs);
    RedisModule_DigestAddStringBuffer(digest, model->blob->data, model->blob->size);
    RedisModule_DigestEndSequence(digest);
}

static void copy_names(Names *to, const Names *from) {
    *to = names_new(from->n);
    for (size_t i = 0; i < from->n; i++) {
        RedisModule_Free(to->items[i].data);
        to->items[i] = text_new(from->items[i].data, from->items[i].length);
    }
}

/* A copy shares the bytes, but has a ref and statistics of its own. */
static void *model_copy(RedisModuleString *from, RedisModuleString *to, const void *value) {
    (void)from;
    const Model *model = value;
    atomic_fetch_add_explicit(&model->blob->refs, 1, memory_order_relaxed);
    Model *copy = model_new(model->backend, model->device, model->blob);
    RedisModule_Free(copy->tag.data);
    copy->tag = text_new(model->tag.data, model->tag.length);
    copy->batch_size = model->batch_size;
    copy->min_batch_size = model->min_batch_size;
    copy->min_batch_timeout_ms = model->min_batch_timeout_ms;
    copy_names(&copy->inputs, &model->inputs);
    copy_names(&copy->outputs, &model->outputs);
    size_t length;
    const char *text = RedisModule_StringPtrLen(to, &length);
    model_remember_key(copy, text, length);
    return copy;
}

static void model_free(void *value) {
    model_release(value);
}

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

/* Models: the value behind AI__MODEL keys, and the registry of the live ones.
 *
 * Ownership. A Model is counted: its key holds one reference and every job that names it holds one, so a DEL or an overwrite during
 * a run does not disturb the run. Each Model has a number of its own, `ref`, by which the worker knows it; the number is never reused.
 * The server may drop a key's reference on a background thread. Therefore the count is atomic and the last release frees only the bytes;
 * the rest is put on a list that the main thread empties: it takes the model out of the registry and tells the worker (model.drop).
 * Everything but releasing belongs to the main thread.
 *
 * The bytes are only stored here. Loading them into a runtime is the worker's, so loading an RDB file never needs a worker. */
#ifndef QA_MODEL_H
#define QA_MODEL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "module_api.h"

#define MODEL_MAX_NAMES 1024 /* inputs, outputs */
#define MODEL_MAX_DEVICE 9
#define MODEL_MIN_BATCH_TIMEOUT_MS 1000 /* when MINBATCHSIZE comes without MINBATCHTIMEOUT: nothing waits forever */
#define MODEL_MAX_BATCH 1000000000LL

typedef struct Text {
    size_t length;
    char *data; /* ends with a NUL; never NULL */
} Text;

typedef struct Names {
    size_t n;
    Text *items;
} Names;

typedef struct ModelStats {
    long long duration_us, samples, calls, errors;
} ModelStats;

/* The file. Shared by the copies of a model; chunks are joined. */
typedef struct ModelBlob {
    atomic_uint refs;
    size_t size;
    char *data;
} ModelBlob;

typedef enum { MODEL_ONNX = 1, MODEL_TORCH = 2 } ModelBackend; /* stored in RDB files: never renumber */

typedef struct Model {
    atomic_uint refs;
    uint64_t ref;
    ModelBackend backend;
    char device[MODEL_MAX_DEVICE + 1]; /* upper case */
    Text tag;
    long long batch_size, min_batch_size, min_batch_timeout_ms; /* 0: not given */
    Names inputs, outputs; /* empty until the worker has named them */
    ModelBlob *blob;
    ModelStats stats;
    Text key;           /* the name under which it was last seen */
    int worker_knows;   /* its ref was given to a worker */
    struct Model *next; /* in the registry, later in the list of dead ones */
    struct Model *next_dead;
} Model;

Text text_new(const char *data, size_t length);
void names_free(Names *names);
/* Empty names, all set to "". */
Names names_new(size_t n);

ModelBlob *model_blob_new(size_t size); /* NULL: no memory */
void model_blob_release(ModelBlob *blob);

/* An empty model with a fresh ref and one reference, which takes over `blob`. */
Model *model_new(ModelBackend backend, const char *device, ModelBlob *blob);
Model *model_retain(Model *model);
void model_release(Model *model);

const char *model_backend_name(ModelBackend backend);
/* Takes CPU, GPU, CPU:n, GPU:n in any case and puts it in upper case. `device` has room for MODEL_MAX_DEVICE + 1. */
int model_device_parse(const char *text, size_t length, char *device);

/* A new reference to the live model with that ref, or NULL. */
Model *model_by_ref(uint64_t ref);
/* Calls `visit` for every registered model. It may read all but the blob: the last reference may just have gone. */
void model_each(void (*visit)(Model *model, void *data), void *data);

void model_remember_key(Model *model, const char *name, size_t length);

/* The size of the pieces in which files are given out (AI.CONFIG MODEL_CHUNK_SIZE). */
long long model_chunk_size(void);
void model_set_chunk_size(long long bytes);

/* ---- model_type.c: the data type ---- */

/* The model at the key, borrowed until the current command ends; NULL after an error was sent. */
Model *model_read_or_reply(RedisModuleCtx *ctx, RedisModuleString *key);
/* Stores the model: the key takes over the caller's reference. */
void model_store(RedisModuleCtx *ctx, RedisModuleString *key, Model *model);
/* Replicates the model as AI.MODELSTORE, with its names, so that nobody has to ask a worker for them. */
void model_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Model *model);
RedisModuleType *model_key_type(void);
int model_type_create(RedisModuleCtx *ctx);

/* cmd_model.c: creates the type, registers the commands (cmd_modelrun.c: those that run). */
int model_on_load(RedisModuleCtx *ctx);
int model_run_on_load(RedisModuleCtx *ctx);

#endif

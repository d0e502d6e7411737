/* Models: the values of the AI__MODEL data type. runnable.h describes the lifetime of models, the registry of all
 * models, and the ref, the number of a model in messages to the worker.
 *
 * The module only stores the bytes of a model. The worker loads them into a runtime. So the module can load an RDB file
 * without a worker. */
#pragma once

#include "models/blob.h"
#include "models/runnable.h"
#include "server/module_api.h"
#include "server/texts.h"

#define MODEL_ENCVER 5                  /* the encoding version of a model in an RDB file */
#define MODEL_MIN_BATCH_TIMEOUT_MS 1000 /* for MINBATCHSIZE without MINBATCHTIMEOUT, so that no run waits forever */
#define MODEL_MAX_BATCH 1000000000LL

typedef enum { MODEL_ONNX = 1, MODEL_TORCH = 2 } ModelBackend; /* stored in RDB files: never renumber */

typedef struct Model {
    Runnable run;
    ModelBackend backend;
    long long batch_size, min_batch_size, min_batch_timeout_ms; /* 0: not given */
    Names inputs, outputs;                                      /* empty until the worker has reported the names */
    Blob *blob;                                                 /* NULL only during the load of an RDB file */
} Model;

extern const RunnableClass model_class;

/* Returns a model with a new ref, without names of inputs and outputs. The model has one reference, which belongs to
 * the caller. Takes over the caller's reference to `blob`. */
Model *model_new(ModelBackend backend, const char *device, Blob *blob);

/* Returns NULL, or an error line if the model has a different number of inputs or outputs. Accepts all numbers while
 * the names of the model are unknown. */
const char *model_check_counts(const Model *model, int n_inputs, int n_outputs);

/* ---- Models behind keys ---- */

/* Sets *model to the model of the key, which is valid until the current command ends. Returns NULL or an error line. */
const char *model_read(RedisModuleCtx *ctx, RedisModuleString *key, Model **model);
/* Stores the model in the key, which takes over the caller's reference. */
void model_store(RedisModuleCtx *ctx, RedisModuleString *key, Model *model);
/* Replicates the model as AI.MODELSTORE with its names, so that a replica needs no worker. */
void model_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Model *model);
RedisModuleType *model_key_type(void);
/* Creates the data type. */
int model_type_create(RedisModuleCtx *ctx);

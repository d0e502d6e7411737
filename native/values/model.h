/* Models: the value behind AI__MODEL keys. Lifetime and registry: runnable.h.
 *
 * The module only stores the bytes. The worker loads them into a runtime, so loading an RDB file never needs a
 * worker. */
#ifndef QA_MODEL_H
#define QA_MODEL_H

#include "server/module_api.h"
#include "server/texts.h"
#include "values/blob.h"
#include "values/runnable.h"

#define MODEL_MIN_BATCH_TIMEOUT_MS 1000 /* for MINBATCHSIZE without MINBATCHTIMEOUT: no run waits forever */
#define MODEL_MAX_BATCH 1000000000LL

typedef enum { MODEL_ONNX = 1, MODEL_TORCH = 2 } ModelBackend; /* stored in RDB files: never renumber */

typedef struct Model {
    Runnable run;
    ModelBackend backend;
    long long batch_size, min_batch_size, min_batch_timeout_ms; /* 0: not given */
    Names inputs, outputs;                                      /* empty until the worker has named them */
    Blob *blob;                                                 /* NULL only while an RDB file is being read */
} Model;

extern const RunnableClass model_class;

/* A model without names, with a fresh ref and one reference. It takes over `blob`. */
Model *model_new(ModelBackend backend, const char *device, Blob *blob);

/* NULL, or the error for a model that names other numbers of inputs and outputs than these. */
const char *model_check_counts(const Model *model, int n_inputs, int n_outputs);

#endif

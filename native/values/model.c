/* How models behave as runnables. The bytes are a Blob, which copies share. */
#include "values/model.h"

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

/* The arguments of the commands that store models. A ModelSpec points into argv, so the ModelSpec is valid until the
 * command ends. */
#pragma once

#include "models/model.h"
#include "server/module_api.h"

/* The arguments of AI.MODELSTORE and AI.MODELSET. */
typedef struct ModelSpec {
    ModelBackend backend;
    char device[DEVICE_MAX + 1];
    RedisModuleString *tag; /* NULL: no TAG */
    long long batch_size, min_batch_size, min_batch_timeout_ms;
    RedisModuleString **inputs, **outputs;
    int n_inputs, n_outputs;
    RedisModuleString **chunks;
    int n_chunks;
    size_t size;     /* the bytes of all chunks together */
    char error[200]; /* the buffer for error lines that contain a value */
} ModelSpec;

/* argv: the arguments after the key. `trusted`: the command is from a primary or the AOF, so it may have INPUTS and
 * OUTPUTS with the names that a worker reported. Both functions return NULL or an error line. */
const char *model_args_store(ModelSpec *spec, RedisModuleString **argv, int argc, int trusted);
const char *model_args_set(ModelSpec *spec, RedisModuleString **argv, int argc);

/* These functions only parse: they store nothing and send no reply. If RedisAI has the same error, the error has
 * RedisAI's text, because clients may know this text. */
#include "models/model_args.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "server/args.h"
#include "server/config.h"

static const char ERR_BATCH[] = "ERR Invalid argument for BATCHSIZE";
static const char ERR_MIN_BATCH[] = "ERR Invalid argument for MINBATCHSIZE";
static const char ERR_BATCH_TIMEOUT[] = "ERR Invalid argument for MINBATCHTIMEOUT";

static const char *parse_backend(ModelSpec *spec, RedisModuleString *name) {
    if (arg_is(name, "ONNX")) {
        spec->backend = MODEL_ONNX;
    } else if (arg_is(name, "TORCH")) {
        spec->backend = MODEL_TORCH;
    } else if (arg_is(name, "TF") || arg_is(name, "TFLITE")) {
        snprintf(spec->error, sizeof spec->error,
                 "ERR unsupported backend %s: convert the model to ONNX and store it with backend ONNX",
                 arg_is(name, "TF") ? "TF" : "TFLITE");
        return spec->error;
    } else {
        return "ERR unsupported backend";
    }
    return NULL;
}

static const char *parse_batching(ModelSpec *spec, Cursor *cursor, int old_form) {
    if (cursor_accept(cursor, "BATCHSIZE") && !cursor_count(cursor, MODEL_MAX_BATCH, &spec->batch_size))
        return ERR_BATCH;
    if (cursor_accept(cursor, "MINBATCHSIZE")) {
        if (!spec->batch_size) return "ERR MINBATCHSIZE specified without BATCHSIZE";
        if (!cursor_count(cursor, MODEL_MAX_BATCH, &spec->min_batch_size)) return ERR_MIN_BATCH;
    }
    if (cursor_accept(cursor, "MINBATCHTIMEOUT")) {
        if (!spec->batch_size && old_form) return "ERR MINBATCHTIMEOUT specified without BATCHSIZE";
        if (!spec->min_batch_size) return "ERR MINBATCHTIMEOUT specified without MINBATCHSIZE";
        if (!cursor_count(cursor, MODEL_MAX_BATCH, &spec->min_batch_timeout_ms)) return ERR_BATCH_TIMEOUT;
    }
    if (spec->min_batch_size && !spec->min_batch_timeout_ms) spec->min_batch_timeout_ms = MODEL_MIN_BATCH_TIMEOUT_MS;
    return NULL;
}

static const char *parse_head(ModelSpec *spec, Cursor *cursor, int old_form) {
    memset(spec, 0, sizeof *spec);
    if (cursor->argc < 2) return "ERR Insufficient arguments, missing model BLOB";
    const char *error = parse_backend(spec, cursor->argv[cursor->at++]);
    if (error) return error;
    size_t length;
    const char *device = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &length);
    if (!device_parse(device, length, spec->device))
        return old_form && length <= DEVICE_MAX + 1 ? "ERR unsupported device" : "ERR Invalid DEVICE";
    if (cursor_accept(cursor, "TAG")) {
        if (cursor->at == cursor->argc) return "ERR Insufficient arguments, missing model BLOB";
        spec->tag = cursor->argv[cursor->at++];
        if ((error = texts_check(&spec->tag, 1))) return error;
    }
    return parse_batching(spec, cursor, old_form);
}

/* Reads INPUTS n name.. OUTPUTS n name.. if these arguments are there. Returns NULL or an error line. */
static const char *parse_names(ModelSpec *spec, Cursor *cursor, int trusted) {
    if (!cursor_accept(cursor, "INPUTS")) return NULL;
    if (!trusted) return "ERR INPUTS argument should not be specified for this backend";
    long long n;
    if (!cursor_count(cursor, NAMES_MAX, &n)) return "ERR Invalid argument for input_count";
    if (n > cursor->argc - cursor->at) return "ERR number of model inputs does not match the number of given arguments";
    spec->inputs = cursor->argv + cursor->at;
    spec->n_inputs = (int)n;
    cursor->at += (int)n;
    if (!cursor_accept(cursor, "OUTPUTS") || !cursor_count(cursor, NAMES_MAX, &n))
        return "ERR Invalid argument for output_count";
    if (n > cursor->argc - cursor->at)
        return "ERR number of model outputs does not match the number of given arguments";
    spec->outputs = cursor->argv + cursor->at;
    spec->n_outputs = (int)n;
    cursor->at += (int)n;
    return NULL;
}

static const char *parse_blob(ModelSpec *spec, Cursor *cursor, int trusted) {
    if (cursor->at == cursor->argc) return "ERR Insufficient arguments, missing model BLOB";
    if (!cursor_accept(cursor, "BLOB")) return "ERR Invalid argument, expected BLOB";
    spec->chunks = cursor->argv + cursor->at;
    spec->n_chunks = cursor->argc - cursor->at;
    for (int i = 0; i < spec->n_chunks; i++) {
        size_t length;
        RedisModule_StringPtrLen(spec->chunks[i], &length);
        spec->size += length; /* no overflow: all bytes are in memory */
    }
    if (spec->size == 0) return "ERR Insufficient arguments, missing model BLOB";
    long long limit = config.max_model_mb << 20;
    if (!trusted && spec->size > (unsigned long long)limit) {
        snprintf(spec->error, sizeof spec->error,
                 "ERR model of %zu bytes is larger than the limit of %lld bytes (qa.max-model-mb)", spec->size, limit);
        return spec->error;
    }
    return NULL;
}

const char *model_args_store(ModelSpec *spec, RedisModuleString **argv, int argc, int trusted) {
    Cursor cursor = {argv, argc, 0};
    const char *error = parse_head(spec, &cursor, 0);
    if (!error) error = parse_names(spec, &cursor, trusted);
    if (!error) error = parse_blob(spec, &cursor, trusted);
    return error;
}

const char *model_args_set(ModelSpec *spec, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 0};
    const char *error = parse_head(spec, &cursor, 1);
    if (!error) error = parse_names(spec, &cursor, 0);
    if (!error) error = parse_blob(spec, &cursor, 0);
    return error;
}

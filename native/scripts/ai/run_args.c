/* These functions only parse: they store nothing and send no reply. Error texts that clients know from RedisAI are the
 * same. */
#include "scripts/ai/run_args.h"

#include <limits.h>
#include <string.h>

#include "server/args.h"

static const char *parse_timeout(RunSpec *spec, Cursor *cursor) {
    if (cursor->at == cursor->argc) return "ERR No value provided for TIMEOUT";
    if (!cursor_count(cursor, INT_MAX, &spec->timeout_ms) || spec->timeout_ms == 0)
        return "ERR Invalid value for TIMEOUT";
    return NULL;
}

typedef struct ListErrors {
    const char *missing, *invalid, *not_positive, *too_few;
} ListErrors;

static const ListErrors INPUT_ERRORS = {
    "ERR INPUTS not specified", "ERR Invalid argument for input_count", "ERR Input count must be a positive integer",
    "ERR number of input keys to AI.MODELEXECUTE command does not match the number of given arguments"};
static const ListErrors OUTPUT_ERRORS = {
    "ERR OUTPUTS not specified", "ERR Invalid argument for output_count", "ERR Output count must be a positive integer",
    "ERR number of output keys to AI.MODELEXECUTE command does not match the number of given arguments"};

/* word n key.. */
static const char *parse_counted(Cursor *cursor, const char *word, const ListErrors *errors, int *first, int *n) {
    long long count;
    if (!cursor_accept(cursor, word)) return errors->missing;
    if (cursor->at == cursor->argc ||
        RedisModule_StringToLongLong(cursor->argv[cursor->at++], &count) != REDISMODULE_OK)
        return errors->invalid;
    if (count <= 0) return errors->not_positive;
    if (count > cursor->argc - cursor->at) return errors->too_few;
    *first = cursor->at;
    *n = (int)count;
    cursor->at += *n;
    return NULL;
}

const char *run_args_execute(RunSpec *spec, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 2};
    memset(spec, 0, sizeof *spec);
    const char *error = parse_counted(&cursor, "INPUTS", &INPUT_ERRORS, &spec->inputs, &spec->n_inputs);
    if (!error) error = parse_counted(&cursor, "OUTPUTS", &OUTPUT_ERRORS, &spec->outputs, &spec->n_outputs);
    if (error) return error;
    if (cursor_accept(&cursor, "TIMEOUT") && (error = parse_timeout(spec, &cursor))) return error;
    if (cursor.at == argc) return NULL;
    return arg_error(spec->error, sizeof spec->error, "Invalid argument: ", argv[cursor.at]);
}

/* AI.MODELRUN key [TIMEOUT ms] INPUTS key.. OUTPUTS key..: the lists end at the next keyword. */
const char *run_args_run(RunSpec *spec, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 2};
    memset(spec, 0, sizeof *spec);
    const char *error = NULL;
    if (cursor_accept(&cursor, "TIMEOUT") && (error = parse_timeout(spec, &cursor))) return error;
    if (!cursor_accept(&cursor, "INPUTS")) return INPUT_ERRORS.missing;
    spec->inputs = cursor.at;
    while (cursor.at < argc && !arg_is(argv[cursor.at], "OUTPUTS")) cursor.at++;
    spec->n_inputs = cursor.at - spec->inputs;
    if (cursor.at == argc) return OUTPUT_ERRORS.missing;
    spec->outputs = cursor.at + 1;
    spec->n_outputs = argc - spec->outputs;
    if (spec->n_inputs == 0) return INPUT_ERRORS.missing;
    if (spec->n_outputs == 0) return OUTPUT_ERRORS.missing;
    return NULL;
}

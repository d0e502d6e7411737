/* These functions only parse: they store nothing and send no reply. Error texts that clients know from RedisAI are the
 * same. */
#include "scripts/ai/run_args.h"

#include <string.h>

static const char NO_TIMEOUT[] = "ERR No value provided for TIMEOUT";

typedef struct ListErrors {
    const char *missing, *invalid, *not_positive, *too_few;
} ListErrors;

static const ListErrors INPUT_ERRORS = {
    "ERR INPUTS not specified", "ERR Invalid argument for input_count", "ERR Input count must be a positive integer",
    "ERR number of input keys to AI.MODELEXECUTE command does not match the number of given arguments"};
static const ListErrors OUTPUT_ERRORS = {
    "ERR OUTPUTS not specified", "ERR Invalid argument for output_count", "ERR Output count must be a positive integer",
    "ERR number of output keys to AI.MODELEXECUTE command does not match the number of given arguments"};

/* Reads the keyword `word`, a number n, and n keys. Sets *range to the keys. Returns NULL, or one of the error lines in
 * `errors`. */
static const char *parse_counted(Cursor *cursor, const char *word, const ListErrors *errors, ArgRange *range) {
    long long count;
    if (!cursor_accept(cursor, word)) return errors->missing;
    if (cursor->at == cursor->argc ||
        RedisModule_StringToLongLong(cursor->argv[cursor->at++], &count) != REDISMODULE_OK)
        return errors->invalid;
    if (count <= 0) return errors->not_positive;
    return cursor_range(cursor, count, range) ? NULL : errors->too_few;
}

const char *run_args_execute(RunSpec *spec, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 2};
    memset(spec, 0, sizeof *spec);
    const char *error = parse_counted(&cursor, "INPUTS", &INPUT_ERRORS, &spec->inputs);
    if (!error) error = parse_counted(&cursor, "OUTPUTS", &OUTPUT_ERRORS, &spec->outputs);
    if (error) return error;
    if (cursor_accept(&cursor, "TIMEOUT") && (error = cursor_timeout(&cursor, NO_TIMEOUT, &spec->timeout_ms)))
        return error;
    if (cursor.at == argc) return NULL;
    return arg_error(spec->error, sizeof spec->error, "Invalid argument: ", argv[cursor.at]);
}

/* AI.MODELRUN key [TIMEOUT ms] INPUTS key.. OUTPUTS key..: the lists end at the next keyword. */
const char *run_args_run(RunSpec *spec, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 2};
    memset(spec, 0, sizeof *spec);
    const char *error = NULL;
    if (cursor_accept(&cursor, "TIMEOUT") && (error = cursor_timeout(&cursor, NO_TIMEOUT, &spec->timeout_ms)))
        return error;
    if (!cursor_accept(&cursor, "INPUTS")) return INPUT_ERRORS.missing;
    spec->inputs.first = cursor.at;
    while (cursor.at < argc && !arg_is(argv[cursor.at], "OUTPUTS")) cursor.at++;
    spec->inputs.n = cursor.at - spec->inputs.first;
    if (cursor.at == argc) return OUTPUT_ERRORS.missing;
    spec->outputs = (ArgRange){cursor.at + 1, argc - cursor.at - 1};
    if (spec->inputs.n == 0) return INPUT_ERRORS.missing;
    return spec->outputs.n == 0 ? OUTPUT_ERRORS.missing : NULL;
}

/* These functions only parse: they store nothing and send no reply. Error texts that clients know from RedisAI are the
 * same. */
#include "scripts/ai/script_args.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "scripts/ai/script.h"

static const char ERR_SOURCE[] = "ERR Insufficient arguments, missing script SOURCE";
static const char ERR_ENTRY_POINTS[] = "ERR Insufficient arguments, missing script entry points";

/* ---- Storing ---- */

static const char *parse_head(ScriptSpec *spec, Cursor *cursor) {
    memset(spec, 0, sizeof *spec);
    size_t length;
    const char *device = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &length);
    if (!device_parse(device, length, spec->device)) return "ERR Invalid DEVICE";
    if (!cursor_accept(cursor, "TAG")) return NULL;
    if (cursor->at == cursor->argc) return ERR_SOURCE;
    spec->tag = cursor->argv[cursor->at++];
    return texts_check(&spec->tag, 1);
}

static const char *parse_entry_points(ScriptSpec *spec, Cursor *cursor, int trusted) {
    long long n;
    if (!cursor_accept(cursor, "ENTRY_POINTS") || cursor->at == cursor->argc) return ERR_ENTRY_POINTS;
    if (!cursor_count(cursor, NAMES_MAX, &n))
        return "ERR Non numeric entry points number provided to AI.SCRIPTSTORE command";
    ArgRange names;
    if (!cursor_range(cursor, n, &names) || (n == 0 && !trusted)) return ERR_ENTRY_POINTS;
    spec->entry_points = cursor->argv + names.first;
    spec->n_entry_points = names.n;
    return texts_check(spec->entry_points, spec->n_entry_points);
}

static const char *parse_source(ScriptSpec *spec, Cursor *cursor) {
    if (!cursor_accept(cursor, "SOURCE") || cursor->at == cursor->argc) return ERR_SOURCE;
    spec->source = cursor->argv[cursor->at++];
    if (cursor->at < cursor->argc)
        return arg_error(spec->error, sizeof spec->error,
                         "ERR unexpected argument after the script SOURCE: ", cursor->argv[cursor->at]);
    size_t length;
    RedisModule_StringPtrLen(spec->source, &length);
    if (length <= SCRIPT_MAX_BYTES) return NULL;
    snprintf(spec->error, sizeof spec->error, "ERR script of %zu bytes is larger than the limit of %d bytes", length,
             SCRIPT_MAX_BYTES);
    return spec->error;
}

const char *script_args_store(ScriptSpec *spec, RedisModuleString **argv, int argc, int trusted) {
    Cursor cursor = {argv, argc, 0};
    const char *error = parse_head(spec, &cursor);
    if (!error) error = parse_entry_points(spec, &cursor, trusted);
    if (!error) error = parse_source(spec, &cursor);
    return error;
}

const char *script_args_set(ScriptSpec *spec, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 0};
    const char *error = parse_head(spec, &cursor);
    if (!error) error = parse_source(spec, &cursor);
    return error;
}

/* ---- Running ---- */

typedef struct Scope {
    const char *word, *missing, *invalid, *too_few;
    size_t range; /* offset of its range in a ScriptCall */
} Scope;

static const char TOO_FEW[] = "ERR Invalid arguments provided to AI.SCRIPTEXECUTE";

static const Scope SCOPES[] = {
    {"KEYS", "ERR Missing arguments after KEYS keyword", "ERR Invalid or negative value found in number of KEYS",
     "ERR Number of pre declared KEYS to be used in the command does not match the number of given arguments",
     offsetof(ScriptCall, keys)},
    {"INPUTS", "ERR Invalid argument for inputs count in AI.SCRIPTEXECUTE",
     "ERR Invalid argument for inputs count in AI.SCRIPTEXECUTE", TOO_FEW, offsetof(ScriptCall, inputs)},
    {"ARGS", "ERR Invalid argument for args count in AI.SCRIPTEXECUTE",
     "ERR Invalid argument for args count in AI.SCRIPTEXECUTE", TOO_FEW, offsetof(ScriptCall, args)},
    {"OUTPUTS", "ERR Invalid argument for outputs count in AI.SCRIPTEXECUTE",
     "ERR Invalid argument for outputs count in AI.SCRIPTEXECUTE", TOO_FEW, offsetof(ScriptCall, outputs)},
};
enum { SCOPE_COUNT = sizeof SCOPES / sizeof *SCOPES };

static const char *parse_scope(const Scope *scope, ScriptCall *call, Cursor *cursor, int *seen) {
    ArgRange *range = (ArgRange *)((char *)call + scope->range);
    long long n;
    if (*seen) {
        snprintf(call->error, sizeof call->error, "ERR Already Encountered %s scope in AI.SCRIPTEXECUTE command",
                 scope->word);
        return call->error;
    }
    *seen = 1;
    if (cursor->at == cursor->argc) return scope->missing;
    if (!cursor_count(cursor, INT_MAX, &n)) return scope->invalid;
    return cursor_range(cursor, n, range) ? NULL : scope->too_few;
}

static const char *parse_timeout(ScriptCall *call, Cursor *cursor, const char *missing) {
    call->has_timeout = 1;
    return cursor_timeout(cursor, missing, &call->timeout_ms);
}

const char *script_args_execute(ScriptCall *call, RedisModuleString **argv, int argc, int in_dag) {
    Cursor cursor = {argv, argc, 3};
    int seen[SCOPE_COUNT] = {0};
    memset(call, 0, sizeof *call);
    if (!in_dag && (argc < 4 || (!arg_is(argv[3], "KEYS") && !arg_is(argv[3], "INPUTS"))))
        return "ERR KEYS or INPUTS scope must be provided first for AI.SCRIPTEXECUTE command";
    while (cursor.at < argc && !call->has_timeout) {
        int i = 0;
        const char *error;
        while (i < SCOPE_COUNT && !cursor_accept(&cursor, SCOPES[i].word)) i++;
        if (i < SCOPE_COUNT) error = parse_scope(&SCOPES[i], call, &cursor, &seen[i]);
        else if (cursor_accept(&cursor, "TIMEOUT"))
            error = parse_timeout(call, &cursor, "ERR No value provided for TIMEOUT in AI.SCRIPTEXECUTE");
        else break;
        if (error) return error;
    }
    /* Success. `at` is above `argc` if the server asks for the key positions of a DAG, and an AI.SCRIPTEXECUTE in the
     * DAG ends before the name of the function. */
    if (cursor.at >= argc) return NULL;
    return arg_error(call->error, sizeof call->error,
                     "ERR Invalid AI.SCRIPTEXECUTE command. Unexpected argument: ", argv[cursor.at]);
}

/* INPUTS key.. [$ key..]: the keys after `$` are the last argument of the function, which is variadic. */
static const char *parse_old_inputs(ScriptCall *call, Cursor *cursor) {
    call->inputs.first = cursor->at;
    for (; cursor->at < cursor->argc && !arg_is(cursor->argv[cursor->at], "OUTPUTS"); cursor->at++) {
        if (!arg_is(cursor->argv[cursor->at], "$")) continue;
        if (call->variadic) return "ERR Already encountered a variable size list of tensors";
        call->variadic = cursor->at;
    }
    call->inputs.n = cursor->at - call->inputs.first;
    return NULL;
}

/* AI.SCRIPTRUN key fn [TIMEOUT ms] INPUTS key.. [$ key..] OUTPUTS key.. */
const char *script_args_run(ScriptCall *call, RedisModuleString **argv, int argc) {
    Cursor cursor = {argv, argc, 3};
    const char *error = NULL;
    memset(call, 0, sizeof *call);
    if (cursor_accept(&cursor, "TIMEOUT")) error = parse_timeout(call, &cursor, "ERR No value provided for TIMEOUT");
    if (!error && cursor_accept(&cursor, "INPUTS")) error = parse_old_inputs(call, &cursor);
    if (!error && cursor_accept(&cursor, "OUTPUTS")) {
        call->outputs = (ArgRange){cursor.at, argc - cursor.at};
        cursor.at = argc;
    }
    if (!error && cursor.at < argc)
        error = "ERR Unrecongnized parameter to SCRIPTRUN"; /* [sic]: clients know this text */
    return error;
}

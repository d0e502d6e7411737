/* The arguments of the commands that store and run scripts. Specs point into argv, so they are valid until the command
 * ends. */
#pragma once

#include "models/runnable.h"
#include "server/args.h"

/* The arguments of AI.SCRIPTSTORE and AI.SCRIPTSET. */
typedef struct ScriptSpec {
    char device[DEVICE_MAX + 1];
    RedisModuleString *tag; /* NULL: no TAG */
    RedisModuleString **entry_points;
    int n_entry_points;
    RedisModuleString *source;
    char error[160]; /* the buffer for error lines that contain a value */
} ScriptSpec;

/* argv: the arguments after the key. `trusted` 1: the command comes from a primary or the AOF, so the script may have
 * no entry points. Both functions return NULL or an error line. */
const char *script_args_store(ScriptSpec *spec, RedisModuleString **argv, int argc, int trusted);
const char *script_args_set(ScriptSpec *spec, RedisModuleString **argv, int argc);

/* The arguments of AI.SCRIPTEXECUTE and AI.SCRIPTRUN. */
typedef struct ScriptCall {
    ArgRange keys, inputs, args, outputs;
    int variadic;         /* AI.SCRIPTRUN: position of the `$` among the inputs; 0: there is no `$` */
    long long timeout_ms; /* 0: missing */
    int has_timeout;
    char error[200];
} ScriptCall;

/* argv: the whole command. Both functions return NULL or an error line. `in_dag` 1: the keywords may be in any order.
 * 0: KEYS or INPUTS must be first. After an error, `call` has the arguments before the error, which determine the key
 * positions. */
const char *script_args_execute(ScriptCall *call, RedisModuleString **argv, int argc, int in_dag);
const char *script_args_run(ScriptCall *call, RedisModuleString **argv, int argc);

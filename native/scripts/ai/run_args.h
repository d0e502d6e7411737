/* The arguments of the commands that run models. A spec points into argv, so it is valid until the command ends. */
#pragma once

#include "server/args.h"

/* The arguments of AI.MODELEXECUTE and AI.MODELRUN. */
typedef struct RunSpec {
    ArgRange inputs, outputs;
    long long timeout_ms; /* 0: missing */
    char error[200];
} RunSpec;

/* argv: the whole command. Both functions return NULL or an error line. After an error, `spec` has the arguments before
 * the error, which determine the key positions. */
const char *run_args_execute(RunSpec *spec, RedisModuleString **argv, int argc);
const char *run_args_run(RunSpec *spec, RedisModuleString **argv, int argc);

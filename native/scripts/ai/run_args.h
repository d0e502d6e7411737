/* The arguments of the commands that run models. A spec borrows from argv and lives as long as the command. */
#ifndef QA_RUN_ARGS_H
#define QA_RUN_ARGS_H

#include "server/module_api.h"

/* The arguments of AI.MODELEXECUTE and AI.MODELRUN: positions in argv. */
typedef struct RunSpec {
    int inputs, n_inputs; /* position of the first, and their number */
    int outputs, n_outputs;
    long long timeout_ms; /* 0: missing */
    char error[200];
} RunSpec;

/* argv: the whole command. After an error, `spec` contains what was parsed before, because the key positions are taken
 * from it. */
const char *run_args_execute(RunSpec *spec, RedisModuleString **argv, int argc);
const char *run_args_run(RunSpec *spec, RedisModuleString **argv, int argc);

#endif

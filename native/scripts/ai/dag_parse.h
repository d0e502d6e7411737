/* Parses AI.DAGEXECUTE into a Dag. */
#pragma once

#include "scripts/ai/dag.h"
#include "scripts/ai/run_args.h"
#include "scripts/ai/script_args.h"

/* The positions in argv of the arguments of AI.DAGEXECUTE before the operations. */
typedef struct DagSpec {
    ArgRange load, persist;
    int routing; /* the position of the key after ROUTING; 0: there is no ROUTING */
    long long timeout_ms;
    int has_timeout;
    int first_op; /* position of the first `|>`, or argc */
    RunSpec run;  /* the arguments and the error of the AI.MODELEXECUTE that was parsed last */
    ScriptCall call;
    char error[200];
} DagSpec;

/* Returns NULL or an error line. After an error, `spec` still has the arguments before the error, so that their keys
 * can be reported. */
const char *dag_parse_head(DagSpec *spec, RedisModuleString **argv, int argc, int read_only);
/* Sets *op to the arguments of the operation after the `|>` at *at, and moves *at to the next operation. 0: there is no
 * operation. */
int dag_next_op(RedisModuleString **argv, int argc, int *at, ArgRange *op);
/* Parses the whole command into a new *dag, and replaces each name by the number of a slot. Returns NULL or an error
 * line. */
const char *dag_parse(RedisModuleCtx *ctx, DagSpec *spec, RedisModuleString **argv, int argc, int read_only, Dag **dag);

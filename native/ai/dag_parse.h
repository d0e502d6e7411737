/* From the words of AI.DAGEXECUTE to a Dag. */
#ifndef QA_DAG_PARSE_H
#define QA_DAG_PARSE_H

#include "ai/dag.h"
#include "ai/model_args.h"
#include "ai/script_args.h"

/* What AI.DAGEXECUTE says before its operations. Positions in argv. */
typedef struct DagSpec {
    ArgRange load, persist;
    int routing; /* 0: not given */
    long long timeout_ms;
    int has_timeout;
    int first_op; /* position of the first `|>`; argc when there is none */
    RunSpec run;  /* of the operation that is being parsed; room for its error */
    ScriptCall call;
    char error[200];
} DagSpec;

/* What was understood before an error stays in `spec`: the key positions come from it. NULL or an error line. */
const char *dag_parse_head(DagSpec *spec, RedisModuleString **argv, int argc, int read_only);
/* The words of the operation behind the `|>` at *at, which moves on to the next one. 0: there is none. */
int dag_next_op(RedisModuleString **argv, int argc, int *at, ArgRange *op);
/* Resolves everything. NULL or an error line. */
const char *dag_parse(RedisModuleCtx *ctx, DagSpec *spec, RedisModuleString **argv, int argc, int read_only, Dag **dag);

#endif

/* From the words of AI.DAGEXECUTE to a Dag. */
#ifndef QA_DAG_PARSE_H
#define QA_DAG_PARSE_H

#include "scripts/ai/dag.h"
#include "scripts/ai/run_args.h"
#include "scripts/ai/script_args.h"

/* What comes before the operations of AI.DAGEXECUTE. Positions in argv. */
typedef struct DagSpec {
    ArgRange load, persist;
    int routing; /* 0: not given */
    long long timeout_ms;
    int has_timeout;
    int first_op; /* position of the first `|>`; argc when there is none */
    RunSpec run;  /* of the current operation; has room for its error */
    ScriptCall call;
    char error[200];
} DagSpec;

/* Returns NULL or an error line. `spec` keeps what it parsed before an error, because the key positions come from
 * it. */
const char *dag_parse_head(DagSpec *spec, RedisModuleString **argv, int argc, int read_only);
/* The words of the operation after the `|>` at *at; moves *at to the next one. 0: there is none. */
int dag_next_op(RedisModuleString **argv, int argc, int *at, ArgRange *op);
/* Resolves everything. NULL or an error line. */
const char *dag_parse(RedisModuleCtx *ctx, DagSpec *spec, RedisModuleString **argv, int argc, int read_only, Dag **dag);

#endif

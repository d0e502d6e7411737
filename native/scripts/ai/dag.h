/* DAGs: tensors, and steps that compute new tensors from them. The worker runs a DAG as one job.
 *
 * A slot is a numbered place for one tensor. After a slot has got its tensor, the tensor never changes. The first slots
 * contain the tensors that the client gives. dag_parse.c resolves names and keys before the job is queued, so DEL or an
 * overwrite does not affect the run. The module writes tensors to keys only if every step succeeds. */
#pragma once

#include "jobs/jobs.h"
#include "models/runnable.h"
#include "scripts/ai/script_args.h"
#include "scripts/ai/tensor.h"
#include "scripts/ai/tensor_args.h"

typedef enum { DAG_SET, DAG_GET, DAG_STEP } DagOpKind;
typedef enum { STEP_NOT_RUN, STEP_DONE, STEP_FAILED } StepState;

typedef struct DagOp {
    DagOpKind kind;
    int slot;            /* for DAG_GET: the slot of the tensor in the reply */
    TensorFormat format; /* for DAG_GET: the form of the tensor in the reply */
    /* The following fields are only for DAG_STEP. */
    Runnable *target;
    RedisModuleString *function; /* the function of a script; NULL: the step runs a model */
    ArgList keys, args;
    int *inputs, *outputs; /* the slots of the step's tensors */
    int n_inputs, n_outputs;
    StepState state;
    char *error; /* one line if the step has failed; NULL: the step has not failed */
} DagOp;

typedef struct Dag {
    DagOp *ops;
    int n_ops, n_steps;
    Tensor **slots; /* NULL: not filled yet, or not requested from the worker */
    int n_given, n_slots;
    int *results; /* slots whose tensors the worker must send back */
    int n_results;
    char *wanted;    /* for each slot: 1 if it is in `results` */
    ArgList persist; /* keys, which get the tensors of `persist_slots` */
    int *persist_slots;
    RedisModuleString *user; /* the caller; NULL: the caller has no name */
    uint64_t wait_until_us;  /* the end of the client's TIMEOUT (job_wait_left_ms); 0: no TIMEOUT */
    int db;
    int failed; /* 1: a step has failed */
} Dag;

/* Returns a DAG with space for the given numbers of operations, slots and keys to persist. The caller fills the first
 * n_given slots. */
Dag *dag_new(RedisModuleCtx *ctx, int max_ops, int n_given, int max_slots, int max_persist);
void dag_free(void *dag);
DagOp *dag_add_op(Dag *dag, DagOpKind kind);
/* Adds a step with space for the numbers of its input slots, which the caller sets. The outputs of the step get new
 * slots. */
DagOp *dag_add_step(Dag *dag, Runnable *target, int n_inputs, int n_outputs);
/* Sets the keys and arguments of a script's step. `call` has their positions in argv. */
void dag_set_call(DagOp *op, RedisModuleString **argv, const ScriptCall *call, RedisModuleString *function);
/* Requests the tensor of the slot from the worker. */
void dag_want(Dag *dag, int slot);
void dag_add_persist(Dag *dag, RedisModuleString *key, int slot);

/* Writes the tensors of `persist_slots` to the keys in `persist`. Returns NULL, or an error line. After an error, no
 * key was written. */
const char *dag_persist(RedisModuleCtx *ctx, Dag *dag);

/* Queues a job that takes over the DAG. `timeout_ms` 0: the client gave no timeout. When the steps have run, `reply`
 * writes the reply, even if some steps failed. dag.c itself replies with TIMEDOUT and with errors of the whole DAG. */
typedef void (*DagReply)(RedisModuleCtx *ctx, const Dag *dag);
void dag_submit(RedisModuleCtx *ctx, Dag *dag, DagReply reply, long long timeout_ms);

/* A DAG as a job. The module checks every argument of the worker's answer. An invalid argument fails the whole DAG. */
#include "scripts/ai/dag.h"

#include "models/model.h"
#include "scripts/ai/tensor_type.h"
#include "server/caller.h"
#include "server/keyspace.h"
#include "server/pairs.h"

static const char ERR_RESULT[] = "PROTOCOL worker sent an invalid result of dag.run";

enum { MAX_STEP_ERROR = 64 * 1024 };
#define MAX_STEP_US (1LL << 50)

typedef struct DagJob {
    Dag *dag;
    DagReply reply;
} DagJob;

/* ---- Building ---- */

Dag *dag_new(RedisModuleCtx *ctx, int max_ops, int n_given, int max_slots, int max_persist) {
    Dag *dag = RedisModule_Calloc(1, sizeof *dag);
    dag->ops = RedisModule_Calloc((size_t)max_ops + 1, sizeof *dag->ops);
    dag->slots = RedisModule_Calloc((size_t)max_slots + 1, sizeof *dag->slots);
    dag->results = RedisModule_Calloc((size_t)max_slots + 1, sizeof *dag->results);
    dag->wanted = RedisModule_Calloc((size_t)max_slots + 1, 1);
    dag->persist = arg_list_new((size_t)max_persist);
    dag->persist_slots = RedisModule_Calloc((size_t)max_persist + 1, sizeof *dag->persist_slots);
    dag->n_given = dag->n_slots = n_given;
    dag->db = RedisModule_GetSelectedDb(ctx);
    dag->user = caller_name(ctx);
    return dag;
}

static void free_op(DagOp *op) {
    if (op->target) runnable_release(op->target);
    if (op->function) RedisModule_FreeString(NULL, op->function);
    arg_list_free(&op->keys);
    arg_list_free(&op->args);
    RedisModule_Free(op->inputs);
    RedisModule_Free(op->outputs);
    RedisModule_Free(op->error);
}

void dag_free(void *data) {
    Dag *dag = data;
    for (int i = 0; i < dag->n_ops; i++) free_op(&dag->ops[i]);
    for (int i = 0; i < dag->n_slots; i++)
        if (dag->slots[i]) tensor_release(dag->slots[i]);
    arg_list_free(&dag->persist);
    if (dag->user) RedisModule_FreeString(NULL, dag->user);
    RedisModule_Free(dag->ops);
    RedisModule_Free(dag->slots);
    RedisModule_Free(dag->results);
    RedisModule_Free(dag->wanted);
    RedisModule_Free(dag->persist_slots);
    RedisModule_Free(dag);
}

DagOp *dag_add_op(Dag *dag, DagOpKind kind) {
    DagOp *op = &dag->ops[dag->n_ops++];
    op->kind = kind;
    return op;
}

DagOp *dag_add_step(Dag *dag, Runnable *target, int n_inputs, int n_outputs) {
    DagOp *op = dag_add_op(dag, DAG_STEP);
    dag->n_steps++;
    op->target = runnable_retain(target);
    op->n_inputs = n_inputs;
    op->n_outputs = n_outputs;
    op->inputs = RedisModule_Calloc((size_t)n_inputs + 1, sizeof *op->inputs);
    op->outputs = RedisModule_Calloc((size_t)n_outputs + 1, sizeof *op->outputs);
    for (int i = 0; i < n_outputs; i++) op->outputs[i] = dag->n_slots++;
    return op;
}

void dag_set_call(DagOp *op, RedisModuleString **argv, const ScriptCall *call, RedisModuleString *function) {
    op->function = RedisModule_CreateStringFromString(NULL, function);
    op->keys = arg_list_of(argv, call->keys);
    op->args = arg_list_of(argv, call->args);
}

void dag_want(Dag *dag, int slot) {
    if (slot < dag->n_given || dag->wanted[slot]) return;
    dag->wanted[slot] = 1;
    dag->results[dag->n_results++] = slot;
}

void dag_add_persist(Dag *dag, RedisModuleString *key, int slot) {
    dag->persist_slots[dag->persist.n] = slot;
    arg_list_hold(&dag->persist, key);
    dag_want(dag, slot);
}

/* ---- To the worker ---- */

static int emit_slots(RedisModuleCtx *ctx, const int *slots, int n) {
    RedisModule_ReplyWithLongLong(ctx, n);
    for (int i = 0; i < n; i++) RedisModule_ReplyWithLongLong(ctx, slots[i]);
    return n + 1;
}

static int emit_strings(RedisModuleCtx *ctx, const ArgList *strings) {
    RedisModule_ReplyWithLongLong(ctx, (long long)strings->n);
    return 1 + arg_list_emit(ctx, strings);
}

static int emit_step(RedisModuleCtx *ctx, const DagOp *op) {
    const Model *model = op->target->class == &model_class ? (const Model *)op->target : NULL;
    op->target->worker_knows = 1;
    RedisModule_ReplyWithCString(ctx, model ? "model" : "script");
    RedisModule_ReplyWithLongLong(ctx, (long long)op->target->ref);
    RedisModule_ReplyWithCString(ctx, runnable_backend(op->target));
    RedisModule_ReplyWithCString(ctx, op->target->device);
    RedisModule_ReplyWithLongLong(ctx, model ? model->batch_size : 0);
    RedisModule_ReplyWithLongLong(ctx, model ? model->min_batch_size : 0);
    RedisModule_ReplyWithLongLong(ctx, model ? model->min_batch_timeout_ms : 0);
    reply_optional(ctx, op->function);
    int n = 8 + emit_strings(ctx, &op->keys) + emit_strings(ctx, &op->args);
    return n + emit_slots(ctx, op->inputs, op->n_inputs) + emit_slots(ctx, op->outputs, op->n_outputs);
}

static int emit_dag(RedisModuleCtx *ctx, void *data) {
    const Dag *dag = ((DagJob *)data)->dag;
    int n = 4;
    reply_optional(ctx, dag->user);
    RedisModule_ReplyWithLongLong(ctx, job_wait_left_ms(dag->wait_until_us));
    RedisModule_ReplyWithLongLong(ctx, dag->n_given);
    for (int i = 0; i < dag->n_given; i++) n += tensor_emit(ctx, dag->slots[i]);
    RedisModule_ReplyWithLongLong(ctx, dag->n_steps);
    for (int i = 0; i < dag->n_ops; i++)
        if (dag->ops[i].kind == DAG_STEP) n += emit_step(ctx, &dag->ops[i]);
    return n + emit_slots(ctx, dag->results, dag->n_results);
}

/* ---- From the worker, which may send wrong data ---- */

typedef struct StepReport {
    StepState state;
    long long us, samples;
} StepReport;

static char *error_line(RedisModuleString *text) {
    size_t length;
    const char *data = RedisModule_StringPtrLen(text, &length);
    if (length > MAX_STEP_ERROR) length = MAX_STEP_ERROR;
    char *line = text_new(data, length).data;
    line_clean(line, length);
    return line;
}

/* Reads the result of a step: four arguments (state us samples error). 0: an argument is invalid. */
static int read_step(RedisModuleString **argv, DagOp *op, StepReport *report) {
    size_t length;
    RedisModule_StringPtrLen(argv[3], &length);
    if (!arg_count(argv[1], MAX_STEP_US, &report->us) || !arg_count(argv[2], TENSOR_MAX_BYTES, &report->samples))
        return 0;
    if (arg_is(argv[0], "OK")) report->state = STEP_DONE;
    else if (arg_is(argv[0], "ERR")) report->state = STEP_FAILED;
    else if (arg_is(argv[0], "NA")) report->state = STEP_NOT_RUN;
    else return 0;
    if ((report->state == STEP_FAILED) != (length > 0)) return 0;
    op->state = report->state;
    if (length) op->error = error_line(argv[3]);
    return 1;
}

static int read_steps(Dag *dag, Cursor *cursor, StepReport *reports) {
    long long n;
    int done = 0, skipped = 0;
    if (!cursor_count(cursor, dag->n_steps, &n) || n != dag->n_steps) return 0;
    for (int i = 0; i < dag->n_ops; i++) {
        DagOp *op = &dag->ops[i];
        if (op->kind != DAG_STEP) continue;
        if (cursor->argc - cursor->at < 4 || !read_step(cursor->argv + cursor->at, op, &reports[done])) return 0;
        if (op->state == STEP_FAILED) dag->failed = 1;
        if (op->state == STEP_NOT_RUN) skipped = 1;
        cursor->at += 4;
        done++;
    }
    return dag->failed || !skipped;
}

static int read_results(Dag *dag, Cursor *cursor) {
    long long n;
    if (!cursor_count(cursor, dag->n_results, &n) || n != dag->n_results) return 0;
    for (int i = 0; i < dag->n_results; i++) {
        if (cursor_accept(cursor, "NA")) {
            if (!dag->failed) return 0;
            continue;
        }
        int used = tensor_read(cursor->argv + cursor->at, cursor->argc - cursor->at, &dag->slots[dag->results[i]]);
        if (!used) return 0;
        cursor->at += used;
    }
    return cursor->at == cursor->argc;
}

/* ---- The end ---- */

/* Counts the runs of the steps. `reports` is NULL if the job has failed or the answer of the worker was invalid. Then
 * the failed step is unknown, so every step counts as failed. */
static void count_steps(Dag *dag, const StepReport *reports) {
    for (int i = 0, step = 0; i < dag->n_ops; i++) {
        if (dag->ops[i].kind != DAG_STEP) continue;
        StepReport report = reports ? reports[step++] : (StepReport){STEP_FAILED, 0, 0};
        if (report.state == STEP_NOT_RUN) continue;
        runnable_count(dag->ops[i].target, report.state == STEP_FAILED, report.us, report.samples);
    }
}

const char *dag_persist(RedisModuleCtx *ctx, Dag *dag) {
    if (!dag->persist.n) return NULL;
    int db = RedisModule_GetSelectedDb(ctx);
    RedisModule_SelectDb(ctx, dag->db);
    const char *error = keyspace_may_write(ctx, dag->persist.items, (int)dag->persist.n, tensor_key_type());
    for (size_t i = 0; !error && i < dag->persist.n; i++) {
        Tensor *tensor = dag->slots[dag->persist_slots[i]];
        tensor_replicate(ctx, dag->persist.items[i], tensor);
        tensor_store(ctx, dag->persist.items[i], tensor_retain(tensor));
    }
    RedisModule_SelectDb(ctx, db);
    return error;
}

static const char *finish_dag(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    Dag *dag = ((DagJob *)data)->dag;
    if (result->run_us == 0) return NULL; /* it never ran */
    if (result->status == JOB_TIMEDOUT) return dag->wait_until_us ? NULL : ERR_RESULT;
    StepReport *reports = RedisModule_Calloc((size_t)dag->n_steps + 1, sizeof *reports);
    Cursor cursor = {result->argv, result->argc, 0};
    int good = result->status == JOB_DAG && read_steps(dag, &cursor, reports) && read_results(dag, &cursor);
    count_steps(dag, good ? reports : NULL);
    RedisModule_Free(reports);
    if (result->status == JOB_FAILED) return NULL;
    if (!good) return ERR_RESULT;
    return dag->failed ? NULL : dag_persist(ctx, dag);
}

static void reply_dag(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    const DagJob *job = data;
    if (job_timed_out(result) && job->dag->wait_until_us) RedisModule_ReplyWithSimpleString(ctx, "TIMEDOUT");
    else if (result->status == JOB_FAILED) RedisModule_ReplyWithError(ctx, result->error);
    else job->reply(ctx, job->dag);
}

static void free_dag_job(void *data) {
    dag_free(((DagJob *)data)->dag);
    RedisModule_Free(data);
}

/* The cost is the number of steps, because the number of rows of their outputs is not known yet. The cost is 0 if the
 * model of a step has a minimum batch size, because then the DAG waits for other runs. */
static uint32_t dag_cost(void *data) {
    const Dag *dag = ((DagJob *)data)->dag;
    for (int i = 0; i < dag->n_ops; i++) {
        const DagOp *op = &dag->ops[i];
        int of_model = op->kind == DAG_STEP && op->target->class == &model_class;
        if (of_model && ((const Model *)op->target)->min_batch_size > 1) return 0;
    }
    return (uint32_t)dag->n_steps;
}

#define DAG_METHODS                                                                                                    \
    .kind = "dag.run", .of_model = 1, .emit = emit_dag, .finish = finish_dag, .reply = reply_dag,                      \
    .free = free_dag_job, .cost = dag_cost, .statuses = JOB_STATUS(JOB_DAG) | JOB_STATUS(JOB_TIMEDOUT)
static const JobClass DAG = {DAG_METHODS};
/* For DAGs with TIMEOUT, which limits only the waiting time. */
static const JobClass TIMED_DAG = {DAG_METHODS, .queue_timeout = 1};

void dag_submit(RedisModuleCtx *ctx, Dag *dag, DagReply reply, long long timeout_ms) {
    DagJob *job = RedisModule_Calloc(1, sizeof *job);
    *job = (DagJob){dag, reply};
    if (timeout_ms) dag->wait_until_us = RedisModule_MonotonicMicroseconds() + (uint64_t)timeout_ms * 1000;
    jobs_submit_blocking(ctx, timeout_ms ? &TIMED_DAG : &DAG, job, timeout_ms);
}

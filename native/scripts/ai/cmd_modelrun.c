/* AI.MODELEXECUTE, AI.MODELRUN: a model run is a job. The module reads the input tensors from their keys before it
 * queues the job. So later changes of these keys do not affect the run. */
#include "jobs/jobs.h"
#include "models/model.h"
#include "scripts/ai/run_args.h"
#include "scripts/ai/tensor_type.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/keyspace.h"

static const char ERR_OUTPUTS[] = "PROTOCOL worker sent invalid output tensors";

typedef struct RunJob {
    Model *model;
    Tensor **inputs;
    int n_inputs;
    ArgList outputs; /* the keys of the outputs */
    int db;
    uint64_t wait_until_us; /* the end of the client's TIMEOUT (job_wait_left_ms); 0: no TIMEOUT */
} RunJob;

static int emit_run(RedisModuleCtx *ctx, void *data) {
    RunJob *job = data;
    int n = 9;
    job->model->run.worker_knows = 1;
    RedisModule_ReplyWithLongLong(ctx, (long long)job->model->run.ref);
    RedisModule_ReplyWithCString(ctx, runnable_backend(&job->model->run));
    RedisModule_ReplyWithCString(ctx, job->model->run.device);
    RedisModule_ReplyWithLongLong(ctx, job->model->batch_size);
    RedisModule_ReplyWithLongLong(ctx, job->model->min_batch_size);
    RedisModule_ReplyWithLongLong(ctx, job->model->min_batch_timeout_ms);
    RedisModule_ReplyWithLongLong(ctx, job_wait_left_ms(job->wait_until_us));
    RedisModule_ReplyWithLongLong(ctx, job->n_inputs);
    RedisModule_ReplyWithLongLong(ctx, (long long)job->outputs.n);
    for (int i = 0; i < job->n_inputs; i++) n += tensor_emit(ctx, job->inputs[i]);
    return n;
}

/* Returns the number of rows of the first input. A run with a minimum batch size waits for other runs of its model. So
 * its cost is 0, because it must not delay these other runs. */
static uint32_t run_cost(void *data) {
    RunJob *job = data;
    if (job->model->min_batch_size > 1) return 0;
    long long rows = tensor_samples(job->inputs[0]);
    return rows < 1 ? 1 : rows > UINT32_MAX ? UINT32_MAX : (uint32_t)rows;
}

static void free_run(void *data) {
    RunJob *job = data;
    if (job->model) runnable_release(&job->model->run);
    for (int i = 0; i < job->n_inputs; i++) tensor_release(job->inputs[i]);
    RedisModule_Free(job->inputs);
    arg_list_free(&job->outputs);
    RedisModule_Free(job);
}

/* ---- The end of a run ---- */

/* Reads the outputs from the result: a number, which must be `n`, and then n tensors. 0: the result is invalid, and the
 * function has freed the tensors that it had read. */
static int read_outputs(const JobResult *result, Tensor **tensors, int n) {
    long long count;
    if (result->argc < 1 || RedisModule_StringToLongLong(result->argv[0], &count) != REDISMODULE_OK || count != n)
        return 0;
    int at = 1, done = 0;
    while (done < n) {
        int used = tensor_read(result->argv + at, result->argc - at, &tensors[done]);
        if (!used) break;
        at += used;
        done++;
    }
    if (done == n && at == result->argc) return 1;
    while (done > 0) tensor_release(tensors[--done]);
    return 0;
}

static const char *write_outputs(RedisModuleCtx *ctx, const RunJob *job, Tensor **tensors) {
    int db = RedisModule_GetSelectedDb(ctx);
    RedisModule_SelectDb(ctx, job->db);
    const char *error = keyspace_may_write(ctx, job->outputs.items, (int)job->outputs.n, tensor_key_type());
    for (size_t i = 0; i < job->outputs.n; i++) {
        if (error) {
            tensor_release(tensors[i]);
        } else {
            tensor_replicate(ctx, job->outputs.items[i], tensors[i]);
            tensor_store(ctx, job->outputs.items[i], tensors[i]);
        }
    }
    RedisModule_SelectDb(ctx, db);
    return error;
}

static const char *finish_outputs(RedisModuleCtx *ctx, RunJob *job, const JobResult *result, long long *samples) {
    if (result->status != JOB_TENSORS) return ERR_OUTPUTS;
    Tensor **tensors = RedisModule_Alloc(job->outputs.n * sizeof *tensors);
    const char *error = ERR_OUTPUTS;
    if (read_outputs(result, tensors, (int)job->outputs.n)) {
        *samples = tensor_samples(tensors[0]);
        error = write_outputs(ctx, job, tensors);
    }
    RedisModule_Free(tensors);
    return error;
}

static const char *finish_run(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    RunJob *job = data;
    const char *error = NULL;
    long long samples = 0;
    if (result->run_us == 0) return NULL; /* it never ran */
    if (result->status == JOB_TIMEDOUT && job->wait_until_us) return NULL;
    if (result->status != JOB_FAILED) error = finish_outputs(ctx, job, result, &samples);
    runnable_count(&job->model->run, result->status == JOB_FAILED || error, result->run_us, samples);
    return error;
}

static void reply_run(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    if (((RunJob *)data)->wait_until_us && job_timed_out(result)) RedisModule_ReplyWithSimpleString(ctx, "TIMEDOUT");
    else job_default_reply(ctx, result);
}

#define RUN_METHODS                                                                                                    \
    .kind = "model.run", .of_model = 1, .emit = emit_run, .finish = finish_run, .reply = reply_run, .free = free_run,  \
    .cost = run_cost, .statuses = JOB_STATUS(JOB_TENSORS) | JOB_STATUS(JOB_TIMEDOUT)
static const JobClass RUN = {RUN_METHODS};
/* For runs with TIMEOUT, which limits only the waiting time. */
static const JobClass TIMED_RUN = {RUN_METHODS, .queue_timeout = 1};

/* ---- The commands ---- */

static const char *take_inputs(RedisModuleCtx *ctx, RunJob *job, RedisModuleString **keys, int n) {
    for (int i = 0; i < n; i++) {
        Tensor *tensor;
        const char *error = tensor_read_key(ctx, keys[i], &tensor);
        if (error) return error;
        job->inputs[job->n_inputs++] = tensor_retain(tensor);
    }
    return NULL;
}

static RunJob *run_job_new(RedisModuleCtx *ctx, Model *model, RedisModuleString **argv, const RunSpec *spec,
                           const char **error) {
    RunJob *job = RedisModule_Calloc(1, sizeof *job);
    job->model = (Model *)runnable_retain(&model->run);
    job->db = RedisModule_GetSelectedDb(ctx);
    job->inputs = RedisModule_Calloc((size_t)spec->inputs.n, sizeof *job->inputs);
    job->outputs = arg_list_of(argv, spec->outputs);
    *error = take_inputs(ctx, job, argv + spec->inputs.first, spec->inputs.n);
    if (!*error) *error = keyspace_check_types(ctx, job->outputs.items, spec->outputs.n, tensor_key_type());
    if (!*error) return job;
    free_run(job);
    return NULL;
}

typedef const char *(*ParseRun)(RunSpec *spec, RedisModuleString **argv, int argc);

static int report_keys(RedisModuleCtx *ctx, ParseRun parse, RedisModuleString **argv, int argc) {
    RunSpec spec;
    if (argc < 2) return REDISMODULE_OK;
    parse(&spec, argv, argc);
    RedisModule_KeyAtPosWithFlags(ctx, 1, KEY_READ);
    report_keys_at(ctx, 0, spec.inputs, KEY_READ);
    report_keys_at(ctx, 0, spec.outputs, KEY_WRITE);
    return REDISMODULE_OK;
}

static int run_model(RedisModuleCtx *ctx, ParseRun parse, RedisModuleString **argv, int argc) {
    RunSpec spec;
    if (caller_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_BLOCKING_DENIED);
    Model *model;
    const char *error = model_read(ctx, argv[1], &model);
    if (!error) error = parse(&spec, argv, argc);
    if (!error) error = model_check_counts(model, spec.inputs.n, spec.outputs.n);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    RunJob *job = run_job_new(ctx, model, argv, &spec, &error);
    if (!job) return RedisModule_ReplyWithError(ctx, error);
    if (spec.timeout_ms) job->wait_until_us = RedisModule_MonotonicMicroseconds() + (uint64_t)spec.timeout_ms * 1000;
    jobs_submit_blocking(ctx, spec.timeout_ms ? &TIMED_RUN : &RUN, job, spec.timeout_ms);
    return REDISMODULE_OK;
}

/* AI.MODELEXECUTE key INPUTS n key.. OUTPUTS n key.. [TIMEOUT ms] */
static int AI_MODELEXECUTE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, run_args_execute, argv, argc);
    if (argc < 8) return RedisModule_WrongArity(ctx);
    return run_model(ctx, run_args_execute, argv, argc);
}

/* AI.MODELRUN key [TIMEOUT ms] INPUTS key.. OUTPUTS key.. */
static int AI_MODELRUN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, run_args_run, argv, argc);
    if (argc < 6) return RedisModule_WrongArity(ctx);
    return run_model(ctx, run_args_run, argv, argc);
}

int model_run_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.MODELEXECUTE", AI_MODELEXECUTE_RedisCommand, "write deny-oom getkeys-api", 1, 1, 1, NULL},
        {"AI.MODELRUN", AI_MODELRUN_RedisCommand, "write deny-oom getkeys-api", 1, 1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

/* AI.SCRIPTEXECUTE, AI.SCRIPTRUN: each command becomes a DAG (dag.h) of one step. The inputs and outputs of the step
 * are keys. */
#include "scripts/ai/dag.h"
#include "scripts/ai/script.h"
#include "scripts/ai/tensor_type.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/keyspace.h"

static void reply_step(RedisModuleCtx *ctx, const Dag *dag) {
    if (dag->failed) RedisModule_ReplyWithError(ctx, dag->ops[0].error);
    else RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int is_variadic_mark(const ScriptCall *call, int at) { return call->variadic && at == call->variadic; }

/* Fills the first slots of the DAG, which contain the given tensors (dag.h), with the tensors of the input keys. `$` is
 * not a key. Returns NULL or an error line. */
static const char *take_inputs(RedisModuleCtx *ctx, Dag *dag, RedisModuleString **argv, const ScriptCall *call) {
    int taken = 0;
    for (int i = call->inputs.first; i < call->inputs.first + call->inputs.n; i++) {
        Tensor *tensor;
        if (is_variadic_mark(call, i)) continue;
        const char *error = tensor_read_key(ctx, argv[i], &tensor);
        if (error) return error;
        dag->slots[taken++] = tensor_retain(tensor);
    }
    return NULL;
}

static Dag *one_step(RedisModuleCtx *ctx, Script *script, RedisModuleString **argv, const ScriptCall *call) {
    int n_inputs = call->inputs.n - (call->variadic != 0), n_outputs = call->outputs.n;
    Dag *dag = dag_new(ctx, 1, n_inputs, n_inputs + n_outputs, n_outputs);
    DagOp *op = dag_add_step(dag, &script->run, n_inputs, n_outputs);
    dag_set_call(op, argv, call, argv[2]);
    for (int i = 0; i < n_inputs; i++) op->inputs[i] = i;
    for (int i = 0; i < n_outputs; i++) dag_add_persist(dag, argv[call->outputs.first + i], op->outputs[i]);
    return dag;
}

static int run_script(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int old_form) {
    ScriptCall call;
    Script *script;
    if (caller_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_BLOCKING_DENIED);
    const char *error = script_read(ctx, argv[1], &script);
    if (!error) error = old_form ? script_args_run(&call, argv, argc) : script_args_execute(&call, argv, argc, 0);
    if (!error) error = keyspace_check_types(ctx, argv + call.outputs.first, call.outputs.n, tensor_key_type());
    if (error) return RedisModule_ReplyWithError(ctx, error);
    Dag *dag = one_step(ctx, script, argv, &call);
    error = take_inputs(ctx, dag, argv, &call);
    if (error) {
        dag_free(dag);
        return RedisModule_ReplyWithError(ctx, error);
    }
    dag_submit(ctx, dag, reply_step, call.timeout_ms);
    return REDISMODULE_OK;
}

static int report_keys(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int old_form) {
    ScriptCall call;
    if (argc < 2) return REDISMODULE_OK;
    if (old_form) script_args_run(&call, argv, argc);
    else script_args_execute(&call, argv, argc, 0);
    RedisModule_KeyAtPosWithFlags(ctx, 1, KEY_READ);
    report_keys_at(ctx, 0, call.keys, KEY_BOTH);
    for (int i = call.inputs.first; i < call.inputs.first + call.inputs.n; i++)
        if (!is_variadic_mark(&call, i)) RedisModule_KeyAtPosWithFlags(ctx, i, KEY_READ);
    report_keys_at(ctx, 0, call.outputs, KEY_WRITE);
    return REDISMODULE_OK;
}

/* AI.SCRIPTEXECUTE key fn [KEYS n key..] [INPUTS n key..] [ARGS n arg..] [OUTPUTS n key..] [TIMEOUT ms] */
static int AI_SCRIPTEXECUTE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, argv, argc, 0);
    if (argc < 3) return RedisModule_WrongArity(ctx);
    return run_script(ctx, argv, argc, 0);
}

/* AI.SCRIPTRUN key fn [TIMEOUT ms] INPUTS key.. [$ key..] OUTPUTS key.. */
static int AI_SCRIPTRUN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, argv, argc, 1);
    if (argc < 3) return RedisModule_WrongArity(ctx);
    return run_script(ctx, argv, argc, 1);
}

int script_run_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.SCRIPTEXECUTE", AI_SCRIPTEXECUTE_RedisCommand, "write deny-oom getkeys-api", 1, 1, 1, NULL},
        {"AI.SCRIPTRUN", AI_SCRIPTRUN_RedisCommand, "write deny-oom getkeys-api", 1, 1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

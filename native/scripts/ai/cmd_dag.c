/* AI.DAGEXECUTE and AI.DAGEXECUTE_RO. A DAG without a step needs no worker and gets its reply at once. Any other DAG
 * becomes a job. */
#include "scripts/ai/dag_parse.h"
#include "server/caller.h"
#include "server/commands.h"

static void reply_op(RedisModuleCtx *ctx, const Dag *dag, const DagOp *op) {
    const Tensor *tensor = op->kind == DAG_GET ? dag->slots[op->slot] : NULL;
    if (tensor) tensor_reply(ctx, tensor, &op->format);
    else if (op->kind == DAG_SET || (op->kind == DAG_STEP && op->state == STEP_DONE))
        RedisModule_ReplyWithSimpleString(ctx, "OK");
    else if (op->kind == DAG_STEP && op->state == STEP_FAILED) RedisModule_ReplyWithError(ctx, op->error);
    else RedisModule_ReplyWithSimpleString(ctx, "NA");
}

static void reply_ops(RedisModuleCtx *ctx, const Dag *dag) {
    RedisModule_ReplyWithArray(ctx, dag->n_ops);
    for (int i = 0; i < dag->n_ops; i++) reply_op(ctx, dag, &dag->ops[i]);
}

/* ---- Key positions ---- */

static int report_keys(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int read_only) {
    DagSpec spec;
    ArgRange op;
    dag_parse_head(&spec, argv, argc, read_only);
    report_keys_at(ctx, 0, spec.load, KEY_READ);
    report_keys_at(ctx, 0, spec.persist, KEY_WRITE);
    if (spec.routing) RedisModule_KeyAtPosWithFlags(ctx, spec.routing, KEY_READ);
    for (int at = spec.first_op; dag_next_op(argv, argc, &at, &op);) {
        int script = op.n > 1 && arg_is(argv[op.first], "AI.SCRIPTEXECUTE");
        if (!script && !(op.n > 1 && arg_is(argv[op.first], "AI.MODELEXECUTE"))) continue;
        RedisModule_KeyAtPosWithFlags(ctx, op.first + 1, KEY_READ);
        if (!script) continue;
        script_args_execute(&spec.call, argv + op.first, op.n, 1);
        report_keys_at(ctx, op.first, spec.call.keys, KEY_BOTH);
    }
    return REDISMODULE_OK;
}

/* ---- The commands ---- */

/* Replies to a DAG without a step, which needs no worker. */
static int reply_now(RedisModuleCtx *ctx, Dag *dag) {
    const char *error = dag_persist(ctx, dag);
    if (error) RedisModule_ReplyWithError(ctx, error);
    else reply_ops(ctx, dag);
    dag_free(dag);
    return REDISMODULE_OK;
}

static int execute(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, int read_only) {
    DagSpec spec;
    Dag *dag;
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, argv, argc, read_only);
    if (argc < 4)
        return RedisModule_ReplyWithError(ctx, read_only ? "ERR missing arguments for 'AI.DAGEXECUTE_RO' command"
                                                         : "ERR missing arguments for 'AI.DAGEXECUTE' command");
    if (caller_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_BLOCKING_DENIED);
    const char *error = dag_parse(ctx, &spec, argv, argc, read_only, &dag);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (!dag->n_steps) return reply_now(ctx, dag);
    dag_submit(ctx, dag, reply_ops, spec.timeout_ms);
    return REDISMODULE_OK;
}

/* AI.DAGEXECUTE [LOAD n key..] [PERSIST n key..] [ROUTING key] [TIMEOUT ms] |> op.. [|> op..] */
static int AI_DAGEXECUTE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return execute(ctx, argv, argc, 0);
}

/* Like AI.DAGEXECUTE, but without PERSIST and AI.SCRIPTEXECUTE. */
static int AI_DAGEXECUTE_RO_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return execute(ctx, argv, argc, 1);
}

/* AI.DAGRUN and AI.DAGRUN_RO, which are not supported. */
static int AI_DAGRUN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return RedisModule_ReplyWithError(
        ctx, arg_is(argv[0], "AI.DAGRUN")
                 ? "ERR AI.DAGRUN is left out: use AI.DAGEXECUTE with LOAD, PERSIST or ROUTING "
                   "and AI.MODELEXECUTE, AI.SCRIPTEXECUTE inside it"
                 : "ERR AI.DAGRUN_RO is left out: use AI.DAGEXECUTE_RO with LOAD or ROUTING "
                   "and AI.MODELEXECUTE inside it");
}

int dag_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.DAGEXECUTE", AI_DAGEXECUTE_RedisCommand, "write deny-oom getkeys-api", 0, 0, 0, NULL},
        {"AI.DAGEXECUTE_RO", AI_DAGEXECUTE_RO_RedisCommand, "readonly getkeys-api", 0, 0, 0, NULL},
        {"AI.DAGRUN", AI_DAGRUN_RedisCommand, "readonly", 0, 0, 0, NULL},
        {"AI.DAGRUN_RO", AI_DAGRUN_RedisCommand, "readonly", 0, 0, 0, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

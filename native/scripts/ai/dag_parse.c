/* If a command has several errors, the reported error is the same as in RedisAI: first errors before the operations,
 * then errors within each operation, and last errors in the names that operations share. */
#include "scripts/ai/dag_parse.h"

#include <limits.h>
#include <string.h>

#include "models/model.h"
#include "scripts/ai/script.h"
#include "scripts/ai/tensor_type.h"
#include "server/keyspace.h"

static const char ERR_UNKNOWN_INPUT[] = "ERR INPUT key cannot be found in DAG";
static const char ERR_TIMEOUT_INSIDE[] = "ERR TIMEOUT not allowed within a DAG command";

/* ---- Before the operations ---- */

typedef struct KeyList {
    const char *word, *missing, *invalid, *too_few;
} KeyList;

static const KeyList LOAD = {"LOAD", "ERR missing arguments after LOAD keyword in DAG command",
                             "ERR invalid or negative value found in number of keys to LOAD",
                             "ERR number of keys to LOAD into DAG does not match the number of given arguments"};
static const KeyList PERSIST = {
    "PERSIST", "ERR missing arguments after PERSIST keyword in DAG command",
    "ERR invalid or negative value found in number of keys to PERSIST",
    "ERR number of keys to PERSIST after DAG execution does not match the number of given arguments"};

static const char *parse_key_list(const KeyList *list, Cursor *cursor, ArgRange *range) {
    long long n;
    if (cursor->at == cursor->argc) return list->missing;
    if (!cursor_count(cursor, INT_MAX, &n) || n == 0) return list->invalid;
    return cursor_range(cursor, n, range) ? NULL : list->too_few;
}

const char *dag_parse_head(DagSpec *spec, RedisModuleString **argv, int argc, int read_only) {
    Cursor cursor = {argv, argc, 1};
    memset(spec, 0, sizeof *spec);
    spec->first_op = argc;
    while (cursor.at < argc && !arg_is(argv[cursor.at], "|>")) {
        const char *error = NULL;
        if (!spec->load.n && cursor_accept(&cursor, "LOAD")) {
            error = parse_key_list(&LOAD, &cursor, &spec->load);
        } else if (!spec->persist.n && cursor_accept(&cursor, "PERSIST")) {
            if (read_only) return "ERR PERSIST cannot be specified in a read-only DAG";
            error = parse_key_list(&PERSIST, &cursor, &spec->persist);
        } else if (!spec->routing && cursor_accept(&cursor, "ROUTING")) {
            if (cursor.at == argc) return "ERR Missing ROUTING value";
            spec->routing = cursor.at++;
        } else if (!spec->has_timeout && cursor_accept(&cursor, "TIMEOUT")) {
            spec->has_timeout = 1;
            error = cursor_timeout(&cursor, "ERR No value provided for TIMEOUT", &spec->timeout_ms);
        } else {
            return arg_error(spec->error, sizeof spec->error,
                             "ERR Invalid DAG command. Unexpected argument:  ", argv[cursor.at]);
        }
        if (error) return error;
    }
    spec->first_op = cursor.at;
    if (!spec->load.n && !spec->persist.n && !spec->routing)
        return "ERR AI.DAGEXECUTE and AI.DAGEXECUTE_RO commands must contain at least one out of ROUTING, LOAD, "
               "PERSIST keywords";
    return spec->first_op >= argc - 1 ? "ERR DAG is empty" : NULL;
}

int dag_next_op(RedisModuleString **argv, int argc, int *at, ArgRange *op) {
    if (*at >= argc) return 0;
    int end = *at + 1;
    while (end < argc && !arg_is(argv[end], "|>")) end++;
    *op = (ArgRange){*at + 1, end - *at - 1};
    *at = end;
    return 1;
}

/* ---- The operations ---- */

typedef struct Parser {
    RedisModuleCtx *ctx;
    DagSpec *spec;
    Dag *dag;
    RedisModuleDict *names; /* name of a tensor -> its current slot + 1 */
    int next_given;
    int read_only;
    int unknown_input; /* 1: an operation reads a name that does not exist; this error is reported last */
} Parser;

static int find_name(Parser *parser, RedisModuleString *name) {
    return (int)(intptr_t)RedisModule_DictGet(parser->names, name, NULL) - 1;
}

/* Returns the slot of a name that an operation reads. An unknown name gets slot 0, and the whole command fails. */
static int find_input(Parser *parser, RedisModuleString *name) {
    int slot = find_name(parser, name);
    if (slot < 0) parser->unknown_input = 1;
    return slot < 0 ? 0 : slot;
}

/* Sets the slot of a name. If a later operation writes the name again, the name gets a new slot. */
static void set_name(Parser *parser, RedisModuleString *name, int slot) {
    RedisModule_DictReplace(parser->names, name, (void *)(intptr_t)(slot + 1));
}

static void add_given(Parser *parser, RedisModuleString *name, Tensor *tensor) {
    parser->dag->slots[parser->next_given] = tensor;
    set_name(parser, name, parser->next_given++);
}

static const char *load_tensors(Parser *parser, RedisModuleString **keys, int n) {
    for (int i = 0; i < n; i++) {
        Tensor *tensor;
        const char *error = tensor_read_key(parser->ctx, keys[i], &tensor);
        if (error) return error;
        add_given(parser, keys[i], tensor_retain(tensor));
    }
    return NULL;
}

static const char *parse_tensorset(Parser *parser, RedisModuleString **argv, int argc) {
    Tensor *tensor;
    if (argc < 4) return "wrong number of arguments for 'AI.TENSORSET' command";
    const char *error = tensor_parse(parser->ctx, argv + 2, argc - 2, &tensor);
    if (error) return error;
    dag_add_op(parser->dag, DAG_SET);
    add_given(parser, argv[1], tensor);
    return NULL;
}

static const char *parse_tensorget(Parser *parser, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 4) return "wrong number of arguments for 'AI.TENSORGET' command";
    int slot = find_input(parser, argv[1]);
    DagOp *op = dag_add_op(parser->dag, DAG_GET);
    op->slot = slot;
    dag_want(parser->dag, slot);
    return tensor_format_parse(argv + 2, argc - 2, &op->format);
}

/* Resolves the inputs before the outputs. So if a name is an input and an output of the step, the input is the earlier
 * slot. */
static void name_slots(Parser *parser, DagOp *op, RedisModuleString **inputs, RedisModuleString **outputs) {
    for (int i = 0; i < op->n_inputs; i++) op->inputs[i] = find_input(parser, inputs[i]);
    for (int i = 0; i < op->n_outputs; i++) set_name(parser, outputs[i], op->outputs[i]);
}

static const char *parse_modelexecute(Parser *parser, RedisModuleString **argv, int argc) {
    RunSpec *run = &parser->spec->run;
    Model *model;
    if (argc < 8) return "ERR wrong number of arguments for 'AI.MODELEXECUTE' command";
    const char *error = model_read(parser->ctx, argv[1], &model);
    if (!error) error = run_args_execute(run, argv, argc);
    if (!error && run->timeout_ms) error = ERR_TIMEOUT_INSIDE;
    if (!error) error = model_check_counts(model, run->inputs.n, run->outputs.n);
    if (error) return error;
    DagOp *op = dag_add_step(parser->dag, &model->run, run->inputs.n, run->outputs.n);
    name_slots(parser, op, argv + run->inputs.first, argv + run->outputs.first);
    return NULL;
}

static const char *parse_scriptexecute(Parser *parser, RedisModuleString **argv, int argc) {
    ScriptCall *call = &parser->spec->call;
    Script *script;
    if (parser->read_only) return "ERR AI.SCRIPTEXECUTE command cannot be specified in a read-only DAG";
    if (argc < 3) return "ERR wrong number of arguments for 'AI.SCRIPTEXECUTE' command";
    const char *error = script_read(parser->ctx, argv[1], &script);
    if (!error) error = script_args_execute(call, argv, argc, 1);
    if (!error && call->has_timeout) error = ERR_TIMEOUT_INSIDE;
    if (error) return error;
    DagOp *op = dag_add_step(parser->dag, &script->run, call->inputs.n, call->outputs.n);
    dag_set_call(op, argv, call, argv[2]);
    name_slots(parser, op, argv + call->inputs.first, argv + call->outputs.first);
    return NULL;
}

static const char *parse_op(Parser *parser, RedisModuleString **argv, int argc) {
    static const struct {
        const char *name;
        const char *(*parse)(Parser *parser, RedisModuleString **argv, int argc);
        const char *refusal;
    } OPS[] = {
        {"AI.TENSORSET", parse_tensorset, NULL},
        {"AI.TENSORGET", parse_tensorget, NULL},
        {"AI.MODELEXECUTE", parse_modelexecute, NULL},
        {"AI.SCRIPTEXECUTE", parse_scriptexecute, NULL},
        {"AI.MODELRUN", NULL, "Deprecated AI.MODELRUN cannot be used in AI.DAGEXECUTE command"},
        {"AI.SCRIPTRUN", NULL, "Deprecated AI.SCRIPTRUN cannot be used in AI.DAGEXECUTE command"},
    };
    for (size_t i = 0; argc > 0 && i < sizeof OPS / sizeof *OPS; i++)
        if (arg_is(argv[0], OPS[i].name)) return OPS[i].parse ? OPS[i].parse(parser, argv, argc) : OPS[i].refusal;
    return "Unsupported command within DAG";
}

static const char *check_unique(RedisModuleString **keys, int n) {
    RedisModuleDict *seen = RedisModule_CreateDict(NULL);
    int unique = 1;
    for (int i = 0; unique && i < n; i++) unique = RedisModule_DictSet(seen, keys[i], seen) == REDISMODULE_OK;
    RedisModule_FreeDict(NULL, seen);
    return unique ? NULL : "ERR PERSIST keys must be unique";
}

static const char *name_persisted(Parser *parser, RedisModuleString **keys, int n) {
    for (int i = 0; i < n; i++) {
        int slot = find_name(parser, keys[i]);
        if (slot < 0) return "ERR PERSIST key cannot be found in DAG";
        dag_add_persist(parser->dag, keys[i], slot);
    }
    return keyspace_check_types(parser->ctx, keys, n, tensor_key_type());
}

/* Allocates the Dag with a slot for each given tensor and a slot for each argument of the command. These slots are
 * enough, because the steps have fewer outputs than the command has arguments. */
static Dag *make_room(RedisModuleCtx *ctx, const DagSpec *spec, RedisModuleString **argv, int argc) {
    int at = spec->first_op, n_ops = 0, n_given = spec->load.n;
    ArgRange op;
    while (dag_next_op(argv, argc, &at, &op)) {
        n_ops++;
        /* an invalid operation leaves its slot empty; then the whole command fails */
        if (op.n && arg_is(argv[op.first], "AI.TENSORSET")) n_given++;
    }
    return dag_new(ctx, n_ops, n_given, n_given + argc, spec->persist.n);
}

const char *dag_parse(RedisModuleCtx *ctx, DagSpec *spec, RedisModuleString **argv, int argc, int read_only,
                      Dag **dag) {
    const char *error = dag_parse_head(spec, argv, argc, read_only);
    if (error) return error;
    Parser parser = {ctx, spec, make_room(ctx, spec, argv, argc), RedisModule_CreateDict(NULL), 0, read_only, 0};
    error = check_unique(argv + spec->persist.first, spec->persist.n);
    if (!error) error = load_tensors(&parser, argv + spec->load.first, spec->load.n);
    int at = spec->first_op;
    ArgRange op;
    while (!error && dag_next_op(argv, argc, &at, &op)) error = parse_op(&parser, argv + op.first, op.n);
    if (!error && parser.unknown_input) error = ERR_UNKNOWN_INPUT;
    if (!error) error = name_persisted(&parser, argv + spec->persist.first, spec->persist.n);
    RedisModule_FreeDict(NULL, parser.names);
    if (error) {
        dag_free(parser.dag);
        return error;
    }
    *dag = parser.dag;
    return NULL;
}

/* The RG.* commands that run scripts, ask about executions and describe the cluster. Commands that the worker must
 * answer become jobs (`script`, `command`). */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "jobs/jobs.h"
#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/pairs.h"
#include "server/server.h"
#include "worker/beat.h"

static const char ERR_NO_GEARS_HERE[] = "Can not run gears inside a multi exec, lua, or when blocking is not allowed";

/* ---- RG.PYEXECUTE ---- */

enum { MAX_SESSION_ID = 256 };

/* `run` and `upgrade` have the values of the job `script` (docs/worker-protocol.md, section 4). */
typedef struct Script {
    RedisModuleString *source, *id, *description, *replace_with; /* NULL: missing */
    int run, upgrade;
    ArgList requirements;
} Script;

static void free_script(void *data) {
    Script *script = data;
    RedisModuleString *strings[] = {script->source, script->id, script->description, script->replace_with};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (strings[i]) RedisModule_FreeString(NULL, strings[i]);
    arg_list_free(&script->requirements);
    RedisModule_Free(script);
}

static int emit_script(RedisModuleCtx *ctx, void *data) {
    Script *script = data;
    RedisModule_ReplyWithString(ctx, script->source);
    RedisModule_ReplyWithLongLong(ctx, script->run);
    reply_optional(ctx, script->id);
    reply_optional(ctx, script->description);
    RedisModule_ReplyWithLongLong(ctx, script->upgrade);
    reply_optional(ctx, script->replace_with);
    return 6 + arg_list_emit(ctx, &script->requirements);
}

static const JobClass SCRIPT = {.kind = "script", .emit = emit_script, .free = free_script, .of_user = 1};

/* Limits the characters of session ids, because ids are part of error texts, file names of logs and command lines. */
static int is_session_id(RedisModuleString *id) {
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:";
    size_t length;
    const char *text = RedisModule_StringPtrLen(id, &length);
    return length && length <= MAX_SESSION_ID && strspn(text, ALLOWED) == length;
}

/* Reads the option `name` and its value if argv[*at] is this option. 1: *value is the value, and *at is its position.
 * 0: the argument is a different option. -1: the value is missing, and the function has replied with an error. */
static int take_option(RedisModuleCtx *ctx, const char *name, RedisModuleString **argv, int argc, int *at,
                       RedisModuleString **value) {
    if (strcasecmp(RedisModule_StringPtrLen(argv[*at], NULL), name)) return 0;
    if (*at + 1 >= argc) {
        char error[64];
        snprintf(error, sizeof error, "%s is missing", name);
        RedisModule_ReplyWithError(ctx, error);
        return -1;
    }
    if (*value) RedisModule_FreeString(NULL, *value);
    *value = RedisModule_HoldString(NULL, argv[++*at]);
    return 1;
}

static int unknown_argument(RedisModuleCtx *ctx, const char *word) {
    char error[320];
    snprintf(error, sizeof error, "Unknown arguments were given: %.256s", word);
    RedisModule_ReplyWithError(ctx, error);
    return 0;
}

/* Checks the session ids of a script. Returns 1, or 0 if an id is invalid and the function has replied with an
 * error. */
static int check_script(RedisModuleCtx *ctx, const Script *script) {
    RedisModuleString *const ids[] = {script->id, script->replace_with};
    for (int i = 0; i < 2; i++) {
        if (!ids[i] || is_session_id(ids[i])) continue;
        RedisModule_ReplyWithError(ctx,
                                   i ? "REPLACE_WITH must be compose of: letters, digits, _ - . : (1 to 256 of them)"
                                     : "ID must be compose of: letters, digits, _ - . : (1 to 256 of them)");
        return 0;
    }
    return 1;
}

static int parse_script(RedisModuleCtx *ctx, Script *script, RedisModuleString **argv, int argc) {
    script->source = RedisModule_HoldString(NULL, argv[1]);
    for (int i = 2; i < argc; i++) {
        if (arg_is(argv[i], "requirements")) {
            script->requirements = arg_list_of(argv, (ArgRange){i + 1, argc - i - 1});
            break;
        }
        if (arg_is(argv[i], "unblocking")) script->run = script->run ? script->run : 1;
        else if (arg_is(argv[i], "no_run")) script->run = 2;
        else if (arg_is(argv[i], "upgrade")) script->upgrade = 1;
        else if (!arg_is(argv[i], "force_reinstall_requirements")) {
            int taken = take_option(ctx, "ID", argv, argc, &i, &script->id);
            if (!taken) taken = take_option(ctx, "DESCRIPTION", argv, argc, &i, &script->description);
            if (!taken) taken = take_option(ctx, "REPLACE_WITH", argv, argc, &i, &script->replace_with);
            if (taken < 0) return 0;
            if (!taken) return unknown_argument(ctx, RedisModule_StringPtrLen(argv[i], NULL));
        }
    }
    return check_script(ctx, script);
}

static int RG_PYEXECUTE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.pyexecute")) return REDISMODULE_OK;
    if (caller_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_NO_GEARS_HERE);
    Script *script = RedisModule_Calloc(1, sizeof *script);
    if (parse_script(ctx, script, argv, argc)) jobs_submit_blocking(ctx, &SCRIPT, script, config.script_timeout_ms);
    else free_script(script);
    return REDISMODULE_OK;
}

/* ---- The commands that the worker answers ---- */

static void free_call(void *data) {
    arg_list_free(data);
    RedisModule_Free(data);
}

static int emit_call(RedisModuleCtx *ctx, void *data) { return arg_list_emit(ctx, data); }

static const JobClass COMMAND = {.kind = "command", .emit = emit_call, .free = free_call, .unmeasured = 1};

static int ask_worker(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (caller_blocking_denied(ctx)) return RedisModule_ReplyWithError(ctx, ERR_NO_GEARS_HERE);
    ArgList *call = RedisModule_Alloc(sizeof *call);
    *call = arg_list_of(argv, (ArgRange){0, argc});
    jobs_submit_blocking(ctx, &COMMAND, call, config.script_timeout_ms);
    return REDISMODULE_OK;
}

/* Scripts may contain confidential data, so only administrators see their sources. Requirements and registrations are
 * not confidential. */
static int RG_PYDUMPSESSIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    for (int i = 1; i < argc && !arg_is(argv[i], "sessions"); i++)
        if (arg_is(argv[i], "sources") && !caller_is_admin(ctx, "rg.pydumpsessions|sources")) return REDISMODULE_OK;
    return ask_worker(ctx, argv, argc);
}

/* RG.DUMPEXECUTIONS and RG.PYDUMPREQS. RG.PYDUMPREQS lists the requirements of the sessions. The worker never installs
 * requirements. */
static int RG_DUMP_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return argc == 1 ? ask_worker(ctx, argv, argc) : RedisModule_WrongArity(ctx);
}

static int RG_GETEXECUTION_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2 && argc != 3) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.getexecution")) return REDISMODULE_OK;
    if (argc == 3 && !arg_is(argv[2], "shard") && !arg_is(argv[2], "cluster")) {
        char error[160];
        snprintf(error, sizeof error, "ERR unknown argument of RG.GETEXECUTION: %.64s, expected SHARD or CLUSTER",
                 RedisModule_StringPtrLen(argv[2], NULL));
        return RedisModule_ReplyWithError(ctx, error);
    }
    return ask_worker(ctx, argv, argc);
}

/* RG.GETRESULTS, RG.GETRESULTSBLOCKING, RG.DROPEXECUTION and RG.ABORTEXECUTION. Results contain data that the function
 * has read, so only users with the right to run scripts get results. */
static int RG_EXECUTION_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, RedisModule_StringPtrLen(argv[0], NULL))) return REDISMODULE_OK;
    return ask_worker(ctx, argv, argc);
}

/* ---- The commands that the module answers ---- */

/* Reports the worker's resident memory. RedisGears reports the memory of its allocator. */
static int RG_PYSTATS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    RedisModule_ReplyWithArray(ctx, 6);
    pair_number(ctx, "TotalAllocated", beat_peak_rss_bytes());
    pair_number(ctx, "PeakAllocated", beat_peak_rss_bytes());
    pair_number(ctx, "CurrAllocated", beat_rss_bytes());
    return REDISMODULE_OK;
}

/* Does nothing, because the server always has the current topology. */
static int RG_REFRESHCLUSTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.refreshcluster")) return REDISMODULE_OK;
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* Finds the lowest and highest slot of a primary in the reply to CLUSTER SLOTS. -1, -1: the primary has no slot. */
static void slot_range(RedisModuleCallReply *slots, const char *id, long long *low, long long *high) {
    *low = *high = -1;
    size_t count = RedisModule_CallReplyType(slots) == REDISMODULE_REPLY_ARRAY ? RedisModule_CallReplyLength(slots) : 0;
    for (size_t i = 0; i < count; i++) {
        RedisModuleCallReply *range = RedisModule_CallReplyArrayElement(slots, i);
        RedisModuleCallReply *node = RedisModule_CallReplyArrayElement(range, 2);
        size_t length;
        const char *owner = RedisModule_CallReplyStringPtr(RedisModule_CallReplyArrayElement(node, 2), &length);
        if (length != REDISMODULE_NODE_ID_LEN || memcmp(owner, id, length)) continue;
        long long first = RedisModule_CallReplyInteger(RedisModule_CallReplyArrayElement(range, 0));
        long long last = RedisModule_CallReplyInteger(RedisModule_CallReplyArrayElement(range, 1));
        if (*low < 0 || first < *low) *low = first;
        if (last > *high) *high = last;
    }
}

/* Replies with one primary and returns 1. 0: the node is unknown or is a replica. `slots` is the reply to CLUSTER
 * SLOTS. `listed_id` does not end with a NUL. `run_id` is the run id of this server. */
static int reply_node(RedisModuleCtx *ctx, RedisModuleCallReply *slots, const char *listed_id, const char *run_id) {
    char id[REDISMODULE_NODE_ID_LEN + 1] = "";
    memcpy(id, listed_id, REDISMODULE_NODE_ID_LEN);
    char ip[64] = "", master[REDISMODULE_NODE_ID_LEN + 1] = "";
    int port = 0, flags = 0;
    long long low, high;
    if (RedisModule_GetClusterNodeInfo(ctx, id, ip, master, &port, &flags) != REDISMODULE_OK) return 0;
    if (!(flags & REDISMODULE_NODE_MASTER)) return 0;
    slot_range(slots, id, &low, &high);
    RedisModule_ReplyWithArray(ctx, 16);
    RedisModule_ReplyWithCString(ctx, "id");
    RedisModule_ReplyWithStringBuffer(ctx, id, REDISMODULE_NODE_ID_LEN);
    RedisModule_ReplyWithCString(ctx, "ip");
    RedisModule_ReplyWithCString(ctx, ip);
    pair_number(ctx, "port", port);
    RedisModule_ReplyWithCString(ctx, "unixSocket");
    RedisModule_ReplyWithCString(ctx, "None");
    RedisModule_ReplyWithCString(ctx, "runid");
    RedisModule_ReplyWithCString(ctx, flags & REDISMODULE_NODE_MYSELF ? run_id : "");
    pair_number(ctx, "minHslot", low);
    pair_number(ctx, "maxHslot", high);
    pair_number(ctx, "pendingMessages", 0);
    return 1;
}

static int RG_INFOCLUSTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    if (!(RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_CLUSTER))
        return RedisModule_ReplyWithCString(ctx, "no cluster mode");
    size_t count;
    RedisModuleServerInfoData *server = RedisModule_GetServerInfo(ctx, "server");
    const char *run_id = RedisModule_ServerInfoGetFieldC(server, "run_id");
    RedisModuleCallReply *slots = RedisModule_Call(ctx, "CLUSTER", "c", "SLOTS");
    char **ids = RedisModule_GetClusterNodesList(ctx, &count);
    if (!slots || !ids) {
        RedisModule_ReplyWithError(ctx, "ERRCLUSTER Uninitialized cluster state");
    } else {
        long nodes = 0;
        RedisModule_ReplyWithArray(ctx, 5);
        RedisModule_ReplyWithCString(ctx, "MyId");
        RedisModule_ReplyWithStringBuffer(ctx, RedisModule_GetMyClusterID(), REDISMODULE_NODE_ID_LEN);
        RedisModule_ReplyWithCString(ctx, "MyRunId");
        RedisModule_ReplyWithCString(ctx, run_id ? run_id : "");
        RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
        for (size_t i = 0; i < count; i++) nodes += reply_node(ctx, slots, ids[i], run_id ? run_id : "");
        RedisModule_ReplySetArrayLength(ctx, nodes);
    }
    if (ids) RedisModule_FreeClusterNodesList(ids);
    if (slots) RedisModule_FreeCallReply(slots);
    RedisModule_FreeServerInfo(ctx, server);
    return REDISMODULE_OK;
}

static int RG_DUMPPLUGINS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    RedisModule_ReplyWithArray(ctx, 1);
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithCString(ctx, QA_MODULE_NAME);
    return RedisModule_ReplyWithLongLong(ctx, QA_MODULE_VERSION);
}

/* Replies with an error if the server considers a node of the cluster down, otherwise with OK. Does not contact the
 * nodes. */
static int RG_NETWORKTEST_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.networktest")) return REDISMODULE_OK;
    size_t count = 0;
    char **ids = RedisModule_GetClusterNodesList(ctx, &count), error[128] = "";
    for (size_t i = 0; i < count && !*error; i++) {
        char id[REDISMODULE_NODE_ID_LEN + 1] = "", ip[64], master[REDISMODULE_NODE_ID_LEN + 1];
        int port = 0, flags = 0;
        memcpy(id, ids[i], REDISMODULE_NODE_ID_LEN);
        if (RedisModule_GetClusterNodeInfo(ctx, id, ip, master, &port, &flags) == REDISMODULE_OK &&
            (flags & (REDISMODULE_NODE_PFAIL | REDISMODULE_NODE_FAIL)))
            snprintf(error, sizeof error, "ERRCLUSTER node %s does not answer", id);
    }
    if (ids) RedisModule_FreeClusterNodesList(ids);
    return *error ? RedisModule_ReplyWithError(ctx, error) : RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- Commands that are not supported ---- */

static int RG_LEFTOUT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    static const struct {
        const char *name, *error;
    } INSTEAD[] = {
        {"rg.pyprofile",
         "ERR RG.PYPROFILE is left out: profile in the function with Python's cProfile, and see INFO qa_latency"},
        {"rg.pyexportreq",
         "ERR RG.PYEXPORTREQ is left out: install packages in the worker's environment on every shard"},
        {"rg.pyimportreq",
         "ERR RG.PYIMPORTREQ is left out: install packages in the worker's environment on every shard"},
        {"rg.hello",
         "ERR RG.HELLO is left out: shards find each other through the server's own cluster, see RG.INFOCLUSTER"},
        {"rg.clusterset",
         "ERR RG.CLUSTERSET is left out: the topology is the server's own, see CLUSTER MEET and RG.INFOCLUSTER"},
        {"rg.pyfreeinterpreter",
         "ERR RG.PYFREEINTERPRETER is left out: the interpreter is a process of its own, end it to have a fresh one"},
    };
    for (size_t i = 0; i < sizeof INSTEAD / sizeof *INSTEAD; i++)
        if (arg_is(argv[0], INSTEAD[i].name)) return RedisModule_ReplyWithError(ctx, INSTEAD[i].error);
    return RedisModule_ReplyWithError(ctx, "ERR this command is left out");
}

int rg_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.pyexecute", RG_PYEXECUTE_RedisCommand, "admin write deny-oom", 0, 0, 0, "admin dangerous write slow"},
        {"rg.pystats", RG_PYSTATS_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.pydumpreqs", RG_DUMP_RedisCommand, "readonly", 0, 0, 0, "read slow"},
        {"rg.dumpplugins", RG_DUMPPLUGINS_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.networktest", RG_NETWORKTEST_RedisCommand, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.infocluster", RG_INFOCLUSTER_RedisCommand, "readonly", 0, 0, 0, "read slow"},
        {"rg.refreshcluster", RG_REFRESHCLUSTER_RedisCommand, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.getresults", RG_EXECUTION_RedisCommand, "admin readonly", 0, 0, 0, "admin dangerous read slow"},
        {"rg.getresultsblocking", RG_EXECUTION_RedisCommand, "admin readonly", 0, 0, 0,
         "admin dangerous read slow blocking"},
        {"rg.getexecution", RG_GETEXECUTION_RedisCommand, "admin readonly", 0, 0, 0, "admin dangerous read slow"},
        {"rg.dumpexecutions", RG_DUMP_RedisCommand, "readonly", 0, 0, 0, "read slow"},
        {"rg.pydumpsessions", RG_PYDUMPSESSIONS_RedisCommand, "readonly", 0, 0, 0, "read slow"},
        {"rg.dropexecution", RG_EXECUTION_RedisCommand, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.abortexecution", RG_EXECUTION_RedisCommand, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.pyprofile", RG_LEFTOUT_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.pyexportreq", RG_LEFTOUT_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.pyimportreq", RG_LEFTOUT_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.hello", RG_LEFTOUT_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.clusterset", RG_LEFTOUT_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.pyfreeinterpreter", RG_LEFTOUT_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

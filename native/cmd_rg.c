/* The RG.* commands: parsed here, run by the worker (jobs `script`, `trigger`, `command`) or answered from what the module knows. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cmd_rg.h"
#include "config.h"
#include "hook.h"
#include "jobs.h"
#include "module.h"
#include "registry.h"
#include "supervisor.h"

/* ---- RG.PYEXECUTE ---- */

typedef struct Script {
    RedisModuleString *source, *id, *description, *replace_with; /* NULL: not given */
    int unblocking, upgrade;
    RedisModuleString **requirements;
    int requirement_count;
} Script;

static void free_script(void *data) {
    Script *script = data;
    RedisModuleString *strings[] = {script->source, script->id, script->description, script->replace_with};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (strings[i]) RedisModule_FreeString(NULL, strings[i]);
    for (int i = 0; i < script->requirement_count; i++) RedisModule_FreeString(NULL, script->requirements[i]);
    RedisModule_Free(script->requirements);
    RedisModule_Free(script);
}

static void reply_optional(RedisModuleCtx *ctx, RedisModuleString *string) {
    if (string) RedisModule_ReplyWithString(ctx, string);
    else RedisModule_ReplyWithCString(ctx, "");
}

static int emit_script(RedisModuleCtx *ctx, void *data) {
    Script *script = data;
    RedisModule_ReplyWithString(ctx, script->source);
    RedisModule_ReplyWithLongLong(ctx, script->unblocking);
    reply_optional(ctx, script->id);
    reply_optional(ctx, script->description);
    RedisModule_ReplyWithLongLong(ctx, script->upgrade);
    reply_optional(ctx, script->replace_with);
    for (int i = 0; i < script->requirement_count; i++) RedisModule_ReplyWithString(ctx, script->requirements[i]);
    return 6 + script->requirement_count;
}

static const JobClass SCRIPT = {.kind = "script", .emit = emit_script, .free = free_script};

/* An option with a value: 1 taken, 0 not this option, -1 its value is missing (an error was sent). */
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

static void take_requirements(Script *script, RedisModuleString **argv, int argc, int at) {
    script->requirements = RedisModule_Calloc((size_t)(argc - at) + 1, sizeof *script->requirements);
    for (; at < argc; at++) script->requirements[script->requirement_count++] = RedisModule_HoldString(NULL, argv[at]);
}

static int parse_script(RedisModuleCtx *ctx, Script *script, RedisModuleString **argv, int argc) {
    script->source = RedisModule_HoldString(NULL, argv[1]);
    for (int i = 2; i < argc; i++) {
        const char *word = RedisModule_StringPtrLen(argv[i], NULL);
        if (!strcasecmp(word, "REQUIREMENTS")) {
            take_requirements(script, argv, argc, i + 1);
            return 1;
        }
        if (!strcasecmp(word, "UNBLOCKING")) script->unblocking = 1;
        else if (!strcasecmp(word, "UPGRADE")) script->upgrade = 1;
        else if (strcasecmp(word, "FORCE_REINSTALL_REQUIREMENTS")) {
            int taken = take_option(ctx, "ID", argv, argc, &i, &script->id);
            if (!taken) taken = take_option(ctx, "DESCRIPTION", argv, argc, &i, &script->description);
            if (!taken) taken = take_option(ctx, "REPLACE_WITH", argv, argc, &i, &script->replace_with);
            if (taken < 0) return 0;
            if (taken) continue;
            RedisModuleString *error = RedisModule_CreateStringPrintf(ctx, "Unknown arguments were given: %.256s", word);
            RedisModule_ReplyWithError(ctx, RedisModule_StringPtrLen(error, NULL));
            RedisModule_FreeString(ctx, error);
            return 0;
        }
    }
    return 1;
}

static int pyexecute_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    if (!module_require_admin(ctx, "rg.pyexecute")) return REDISMODULE_OK;
    if (module_blocking_denied(ctx))
        return RedisModule_ReplyWithError(ctx,
                                          "Can not run gears inside a multi exec, lua, or when blocking is not allowed");
    Script *script = RedisModule_Calloc(1, sizeof *script);
    if (parse_script(ctx, script, argv, argc)) jobs_submit_blocking(ctx, &SCRIPT, script, config.script_timeout_ms);
    else free_script(script);
    return REDISMODULE_OK;
}

/* ---- RG.TRIGGER and the commands that the worker answers ---- */

typedef struct Call {
    RedisModuleString *registration; /* of a trigger; NULL: a command */
    RedisModuleString **argv;
    int argc;
} Call;

static Call *new_call(RedisModuleString *registration, RedisModuleString **argv, int argc) {
    Call *call = RedisModule_Calloc(1, sizeof *call);
    if (registration) call->registration = RedisModule_CreateStringFromString(NULL, registration);
    call->argv = RedisModule_Alloc((size_t)argc * sizeof *call->argv);
    for (call->argc = 0; call->argc < argc; call->argc++)
        call->argv[call->argc] = RedisModule_HoldString(NULL, argv[call->argc]);
    return call;
}

static void free_call(void *data) {
    Call *call = data;
    if (call->registration) RedisModule_FreeString(NULL, call->registration);
    for (int i = 0; i < call->argc; i++) RedisModule_FreeString(NULL, call->argv[i]);
    RedisModule_Free(call->argv);
    RedisModule_Free(call);
}

static int emit_call(RedisModuleCtx *ctx, void *data) {
    Call *call = data;
    if (call->registration) RedisModule_ReplyWithString(ctx, call->registration);
    for (int i = 0; i < call->argc; i++) RedisModule_ReplyWithString(ctx, call->argv[i]);
    return call->argc + (call->registration != NULL);
}

static const char *finish_trigger(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    (void)ctx;
    registry_ended(((Call *)data)->registration, result);
    return NULL;
}

static const JobClass TRIGGER = {.kind = "trigger", .emit = emit_call, .finish = finish_trigger, .free = free_call};
static const JobClass COMMAND = {.kind = "command", .emit = emit_call, .free = free_call};

static int trigger_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    Registration *registration = registry_find_trigger(argv[1]);
    if (!registration) return RedisModule_ReplyWithError(ctx, "ERR subcommand not found");
    if (module_blocking_denied(ctx))
        return RedisModule_ReplyWithError(
            ctx, "ERR can not run a non-sync execution inside a MULTI/LUA (blocking is not allowed) or on loading.");
    Call *call = new_call(registration->fields[REG_ID], argv + 1, argc - 1);
    if (jobs_submit_blocking(ctx, &TRIGGER, call, 0)) registry_triggered(registration, 1);
    return REDISMODULE_OK;
}

static int worker_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (module_blocking_denied(ctx))
        return RedisModule_ReplyWithError(ctx,
                                          "Can not run gears inside a multi exec, lua, or when blocking is not allowed");
    jobs_submit_blocking(ctx, &COMMAND, new_call(NULL, argv, argc), config.script_timeout_ms);
    return REDISMODULE_OK;
}

static int admin_worker_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!module_require_admin(ctx, "rg.*execution")) return REDISMODULE_OK;
    return worker_command(ctx, argv, argc);
}

static int configset_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!module_require_admin(ctx, "rg.configset")) return REDISMODULE_OK;
    return config_set_command(ctx, argv, argc);
}

/* ---- What the module knows ---- */

static void reply_pair(RedisModuleCtx *ctx, const char *name, long long value) {
    RedisModule_ReplyWithCString(ctx, name);
    RedisModule_ReplyWithLongLong(ctx, value);
}

/* The worker's resident memory stands for what RedisGears' allocator counted. */
static int pystats_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    const WorkerInfo *worker = supervisor_info();
    RedisModule_ReplyWithArray(ctx, 6);
    reply_pair(ctx, "TotalAllocated", worker->peak_rss_bytes);
    reply_pair(ctx, "PeakAllocated", worker->peak_rss_bytes);
    reply_pair(ctx, "CurrAllocated", worker->beat.rss_bytes);
    return REDISMODULE_OK;
}

/* The topology is the server's own and always fresh: there is nothing to refresh. */
static int refreshcluster_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    if (!module_require_admin(ctx, "rg.refreshcluster")) return REDISMODULE_OK;
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* The lowest and highest slot of a primary in the reply to CLUSTER SLOTS; -1, -1 when it has none. */
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

/* The ids in the server's list do not end with a NUL. */
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
    reply_pair(ctx, "port", port);
    RedisModule_ReplyWithCString(ctx, "unixSocket");
    RedisModule_ReplyWithCString(ctx, "None");
    RedisModule_ReplyWithCString(ctx, "runid");
    RedisModule_ReplyWithCString(ctx, flags & REDISMODULE_NODE_MYSELF ? run_id : "");
    reply_pair(ctx, "minHslot", low);
    reply_pair(ctx, "maxHslot", high);
    reply_pair(ctx, "pendingMessages", 0);
    return 1;
}

static int infocluster_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
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

int rg_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.pyexecute", pyexecute_command, "admin write deny-oom", 0, 0, 0, "admin dangerous write slow"},
        {"rg.trigger", trigger_command, "write deny-oom", 0, 0, 0, "write slow"},
        {"rg.dumpregistrations", registry_dump_command, "readonly", 0, 0, 0, "read slow"},
        {"rg.unregister", registry_unregister_command, "admin write", 0, 0, 0, "admin dangerous write slow"},
        {"rg.pystats", pystats_command, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.infocluster", infocluster_command, "readonly", 0, 0, 0, "read slow"},
        {"rg.refreshcluster", refreshcluster_command, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.configget", config_get_command, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.configset", configset_command, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.getresults", worker_command, "readonly", 0, 0, 0, "read slow"},
        {"rg.getresultsblocking", worker_command, "readonly", 0, 0, 0, "read slow blocking"},
        {"rg.getexecution", worker_command, "readonly", 0, 0, 0, "read slow"},
        {"rg.dumpexecutions", worker_command, "readonly", 0, 0, 0, "read slow"},
        {"rg.pydumpsessions", worker_command, "readonly", 0, 0, 0, "read slow"},
        {"rg.dropexecution", admin_worker_command, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.abortexecution", admin_worker_command, "admin", 0, 0, 0, "admin dangerous slow"},
        {"rg.innerhook", hook_inner_command, "readonly getkeys-api", 0, 0, 0, "read slow"},
    };
    return module_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

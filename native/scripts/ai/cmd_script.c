/* AI.SCRIPTSTORE, AI.SCRIPTSET, AI.SCRIPTGET and AI.SCRIPTDEL for clients. QA.SCRIPTREF and QA.SCRIPT for the worker.
 *
 * Storing a script is a job: the worker compiles the source before the module writes the key. */
#include "jobs/jobs.h"
#include "scripts/ai/script.h"
#include "scripts/ai/script_args.h"
#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/keyspace.h"
#include "server/links.h"

/* ---- AI.SCRIPTSTORE, AI.SCRIPTSET ---- */

typedef struct LoadJob {
    Script *script; /* NULL after it was stored in the key */
    RedisModuleString *key;
    int db;
} LoadJob;

static int emit_load(RedisModuleCtx *ctx, void *data) {
    Script *script = ((LoadJob *)data)->script;
    size_t n = script->entry_points.n;
    script->run.worker_knows = 1;
    RedisModule_ReplyWithLongLong(ctx, (long long)script->run.ref);
    RedisModule_ReplyWithCString(ctx, script->run.device);
    RedisModule_ReplyWithStringBuffer(ctx, script->source.data, script->source.length);
    RedisModule_ReplyWithLongLong(ctx, (long long)n);
    names_emit(ctx, &script->entry_points);
    return 4 + (int)n;
}

static const char *finish_load(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    LoadJob *job = data;
    if (result->status == JOB_FAILED) return NULL;
    if (result->status != JOB_OK) return "PROTOCOL worker sent an invalid reply to script.load";
    int db = RedisModule_GetSelectedDb(ctx);
    RedisModule_SelectDb(ctx, job->db);
    const char *error = keyspace_may_write(ctx, &job->key, 1, script_key_type());
    if (!error) {
        script_replicate(ctx, job->key, job->script);
        script_store(ctx, job->key, job->script);
        job->script = NULL;
    }
    RedisModule_SelectDb(ctx, db);
    return error;
}

static void free_load(void *data) {
    LoadJob *job = data;
    if (job->script) runnable_release(&job->script->run);
    RedisModule_FreeString(NULL, job->key);
    RedisModule_Free(job);
}

static const JobClass LOAD = {
    .kind = "script.load", .emit = emit_load, .finish = finish_load, .reply = job_ok_reply, .free = free_load};

static Script *script_from_spec(const ScriptSpec *spec) {
    Script *script = script_new(spec->device);
    RedisModule_Free(script->source.data);
    script->source = text_of(spec->source);
    script->entry_points = names_of(spec->entry_points, spec->n_entry_points);
    if (spec->tag) {
        RedisModule_Free(script->run.tag.data);
        script->run.tag = text_of(spec->tag);
    }
    return script;
}

static int store_script(RedisModuleCtx *ctx, RedisModuleString **argv, const ScriptSpec *spec) {
    if (caller_is_log(ctx)) { /* needs no worker, because a worker has already compiled the source */
        Script *script = script_from_spec(spec);
        script_replicate(ctx, argv[1], script);
        script_store(ctx, argv[1], script);
        return RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
    LoadJob *job = RedisModule_Calloc(1, sizeof *job);
    job->script = script_from_spec(spec);
    runnable_remember_key(&job->script->run, argv[1]);
    job->key = RedisModule_CreateStringFromString(NULL, argv[1]);
    job->db = RedisModule_GetSelectedDb(ctx);
    jobs_submit_blocking(ctx, &LOAD, job, 0);
    return REDISMODULE_OK;
}

/* AI.SCRIPTSTORE key device [TAG t] ENTRY_POINTS n fn.. SOURCE source */
static int AI_SCRIPTSTORE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    ScriptSpec spec;
    int trusted = caller_is_log(ctx);
    if (argc < (trusted ? 7 : 8)) return RedisModule_WrongArity(ctx);
    if (!trusted && !caller_require_admin(ctx, "AI.SCRIPTSTORE")) return REDISMODULE_OK;
    const char *error = keyspace_check_types(ctx, &argv[1], 1, script_key_type());
    if (!error) error = script_args_store(&spec, argv + 2, argc - 2, trusted);
    return error ? RedisModule_ReplyWithError(ctx, error) : store_script(ctx, argv, &spec);
}

/* AI.SCRIPTSET key device [TAG t] SOURCE source */
static int AI_SCRIPTSET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    ScriptSpec spec;
    if (argc != 5 && argc != 7) return RedisModule_WrongArity(ctx);
    if (!caller_is_log(ctx) && !caller_require_admin(ctx, "AI.SCRIPTSET")) return REDISMODULE_OK;
    const char *error = keyspace_check_types(ctx, &argv[1], 1, script_key_type());
    if (!error) error = script_args_set(&spec, argv + 2, argc - 2);
    return error ? RedisModule_ReplyWithError(ctx, error) : store_script(ctx, argv, &spec);
}

/* ---- AI.SCRIPTGET, AI.SCRIPTDEL ---- */

static void reply_meta(RedisModuleCtx *ctx, const Script *script) {
    RedisModule_ReplyWithCString(ctx, "device");
    RedisModule_ReplyWithCString(ctx, script->run.device);
    RedisModule_ReplyWithCString(ctx, "tag");
    RedisModule_ReplyWithStringBuffer(ctx, script->run.tag.data, script->run.tag.length);
    RedisModule_ReplyWithCString(ctx, "Entry Points");
    names_reply(ctx, &script->entry_points);
}

/* AI.SCRIPTGET key [META] [SOURCE] */
static int AI_SCRIPTGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 || argc > 4) return RedisModule_WrongArity(ctx);
    Script *script;
    const char *error = script_read(ctx, argv[1], &script);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    int meta = argc == 2, source = argc == 2;
    for (int i = 2; i < argc; i++) {
        if (arg_is(argv[i], "META")) meta = 1;
        else if (arg_is(argv[i], "SOURCE")) source = 1;
        else return RedisModule_ReplyWithError(ctx, "ERR Invalid argument, expected META or SOURCE");
    }
    if (meta) {
        RedisModule_ReplyWithArray(ctx, source ? 8 : 6);
        reply_meta(ctx, script);
        if (source) RedisModule_ReplyWithCString(ctx, "source");
    }
    if (source) RedisModule_ReplyWithStringBuffer(ctx, script->source.data, script->source.length);
    return REDISMODULE_OK;
}

static int AI_SCRIPTDEL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Script *script;
    const char *error = script_read(ctx, argv[1], &script);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    keyspace_delete(ctx, argv[1]);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- For the worker ---- */

/* QA.SCRIPTREF key */
static int QA_SCRIPTREF_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.SCRIPTREF")) return REDISMODULE_OK;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Script *script;
    const char *error = script_read(ctx, argv[1], &script);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    script->run.worker_knows = 1;
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithLongLong(ctx, (long long)script->run.ref);
    return RedisModule_ReplyWithCString(ctx, script->run.device);
}

/* QA.SCRIPT ref */
static int QA_SCRIPT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.SCRIPT")) return REDISMODULE_OK;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Script *script = (Script *)runnable_by_ref_or_reply(ctx, &script_class, argv[1]);
    if (!script) return REDISMODULE_OK;
    script->run.worker_knows = 1;
    RedisModule_ReplyWithArray(ctx, 2 + (long)script->entry_points.n);
    RedisModule_ReplyWithCString(ctx, script->run.device);
    RedisModule_ReplyWithStringBuffer(ctx, script->source.data, script->source.length);
    names_emit(ctx, &script->entry_points);
    runnable_release(&script->run);
    return REDISMODULE_OK;
}

int script_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"AI.SCRIPTSTORE", AI_SCRIPTSTORE_RedisCommand, "admin write deny-oom", 1, 1, 1, NULL},
        {"AI.SCRIPTSET", AI_SCRIPTSET_RedisCommand, "admin write deny-oom", 1, 1, 1, NULL},
        {"AI.SCRIPTGET", AI_SCRIPTGET_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"AI.SCRIPTDEL", AI_SCRIPTDEL_RedisCommand, "write", 1, 1, 1, NULL},
        {"QA.SCRIPTREF", QA_SCRIPTREF_RedisCommand, LINK_COMMAND_FLAGS, 1, 1, 1, NULL},
        {"QA.SCRIPT", QA_SCRIPT_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, NULL},
    };
    if (script_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

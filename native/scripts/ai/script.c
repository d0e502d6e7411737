/* A script is replicated as AI.SCRIPTSTORE. A replica, or a server that reads the AOF, stores the script without
 * compiling it. */
#include "scripts/ai/script.h"

#include <string.h>

#include "server/args.h"
#include "server/keyspace.h"

static void script_free_bytes(Runnable *runnable) {
    Script *script = (Script *)runnable;
    RedisModule_Free(script->source.data);
    script->source.data = NULL;
}

static void script_free_rest(Runnable *runnable) {
    names_free(&((Script *)runnable)->entry_points);
    RedisModule_Free(runnable);
}

const RunnableClass script_class = {
    .type = "SCRIPT", .noun = "script", .backend = "TORCH", .free_bytes = script_free_bytes, .free = script_free_rest};

Script *script_new(const char *device) {
    Script *script = RedisModule_Calloc(1, sizeof *script);
    runnable_init(&script->run, &script_class, device);
    script->source = text_new("", 0);
    return script;
}

/* ---- The data type ---- */

/* Encoding version 5 has the device, tag, source and entry points. Loading refuses RedisAI's versions 0 to 4, which
 * have other fields. */
#define SCRIPT_ENCVER 5
#define FIXED_ARGS 8

static RedisModuleType *script_module_type;

RedisModuleType *script_key_type(void) { return script_module_type; }

/* ---- Keys ---- */

const char *script_read(RedisModuleCtx *ctx, RedisModuleString *name, Script **script) {
    void *value;
    KeyState state = keyspace_read(ctx, name, script_module_type, &value);
    *script = value;
    if (state == KEY_EMPTY) return "ERR script key is empty";
    return state == KEY_FOUND ? NULL : REDISMODULE_ERRORMSG_WRONGTYPE;
}

void script_store(RedisModuleCtx *ctx, RedisModuleString *name, Script *script) {
    runnable_remember_key(&script->run, name);
    keyspace_store(ctx, name, script_module_type, script, "ai.scriptstore");
}

static int on_keyspace_event(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *name) {
    if (!strcmp(event, "rename_to")) runnable_renamed(ctx, script_module_type, name);
    return REDISMODULE_OK;
}

/* ---- As a command ---- */

/* Returns the arguments of AI.SCRIPTSTORE after the key. A client must name at least one entry point. A command of a
 * primary or the AOF may have no entry points, because scripts of AI.SCRIPTSET have none. */
static ArgList script_args(const Script *script) {
    ArgList args = arg_list_new(FIXED_ARGS + script->entry_points.n);
    arg_list_word(&args, script->run.device);
    if (script->run.tag.length) {
        arg_list_word(&args, "TAG");
        arg_list_add(&args, script->run.tag.data, script->run.tag.length);
    }
    arg_list_word(&args, "ENTRY_POINTS");
    arg_list_number(&args, (long long)script->entry_points.n);
    for (size_t i = 0; i < script->entry_points.n; i++)
        arg_list_add(&args, script->entry_points.items[i].data, script->entry_points.items[i].length);
    arg_list_word(&args, "SOURCE");
    arg_list_add(&args, script->source.data, script->source.length);
    return args;
}

void script_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Script *script) {
    ArgList args = script_args(script);
    RedisModule_Replicate(ctx, "AI.SCRIPTSTORE", "sv", key, args.items, args.n);
    arg_list_free(&args);
}

static void script_aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    ArgList args = script_args(value);
    RedisModule_EmitAOF(io, "AI.SCRIPTSTORE", "sv", key, args.items, args.n);
    arg_list_free(&args);
}

/* ---- Other callbacks of the type ---- */

static void script_rdb_save(RedisModuleIO *io, void *value) {
    const Script *script = value;
    runnable_save(io, &script->run);
    text_save(io, &script->source);
    names_save(io, &script->entry_points);
}

static void *script_rdb_load(RedisModuleIO *io, int encver) {
    if (encver != SCRIPT_ENCVER) {
        RedisModule_LogIOError(io, "warning", "script has encoding version %d, this module reads version %d", encver,
                               SCRIPT_ENCVER);
        return NULL;
    }
    Script *script = script_new("CPU");
    if (runnable_load(io, &script->run) && text_load(io, SCRIPT_MAX_BYTES, &script->source) &&
        names_load(io, &script->entry_points))
        return script;
    runnable_release(&script->run);
    return NULL;
}

static size_t script_mem_usage(const void *value) {
    const Script *script = value;
    return RedisModule_MallocSize((void *)script) + runnable_memory(&script->run) +
           RedisModule_MallocSize(script->source.data) + names_memory(&script->entry_points);
}

static void script_digest(RedisModuleDigest *digest, void *value) {
    const Script *script = value;
    RedisModule_DigestAddStringBuffer(digest, script->run.device, strlen(script->run.device));
    RedisModule_DigestAddStringBuffer(digest, script->run.tag.data, script->run.tag.length);
    RedisModule_DigestAddStringBuffer(digest, script->source.data, script->source.length);
    names_digest(digest, &script->entry_points);
    RedisModule_DigestEndSequence(digest);
}

/* Returns a copy of a script, for COPY. The copy has its own ref and statistics. */
static void *script_copy(RedisModuleString *from, RedisModuleString *to, const void *value) {
    const Script *script = value;
    Script *copy = script_new(script->run.device);
    text_set(&copy->run.tag, script->run.tag.data, script->run.tag.length);
    text_set(&copy->source, script->source.data, script->source.length);
    copy->entry_points = names_copy(&script->entry_points);
    runnable_remember_key(&copy->run, to);
    return copy;
}

static void script_free(void *value) { runnable_release(value); }

int script_type_create(RedisModuleCtx *ctx) {
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = script_rdb_load,
        .rdb_save = script_rdb_save,
        .aof_rewrite = script_aof_rewrite,
        .mem_usage = script_mem_usage,
        .digest = script_digest,
        .copy = script_copy,
        .free = script_free,
    };
    script_module_type = RedisModule_CreateDataType(ctx, "AI_SCRIPT", SCRIPT_ENCVER, &methods);
    if (!script_module_type) return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_GENERIC, on_keyspace_event);
}

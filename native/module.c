/* The module qa: entry point, and the story of its threads and of who owns what.
 *
 * THREADS. None that does anything but free memory. Whatever the module does happens on the server's main thread: in commands,
 * in the replies of blocked clients, in keyspace notifications, in timers and in event loop callbacks (the control socket and the
 * output of the worker). So no state is ever seen half changed. The server may free values of deleted keys on a background thread
 * of its own: there the `free` of a data type gives up what its value alone owns and leaves the rest to the main thread, on a list
 * under the only lock (runnable.c). The memory of a large model is given back by a short-lived thread of ours (blob.c).
 *
 * What takes long is done elsewhere: the worker, a process of its own, started by supervisor.c with posix_spawn (not fork: the
 * data set may be large, and a fork's page tables cost time in proportion). It talks to the server as an ordinary client and
 * can crash, hang or lie: a crash shows as the control socket's closing, a hang as silence or as a job that outlives its
 * deadline, a lie as a reply that does not parse. Each costs the jobs concerned an error and, if need be, the worker its life.
 *
 * OWNERSHIP. A Job (jobs.c) owns its data, and the client that waits for it. It is in one place at a time: in a lane of the
 * queue, in the list of running jobs, or ended and waiting for the server to write its client's reply. Only jobs.c moves it.
 * A client that leaves ends its job; if the worker was on it already, a tombstone remembers the id until the worker says
 * that it is done, or is killed for not saying so. A Registration (registry.c) belongs to its Session; jobs refer to it by id,
 * never by pointer, because it may be gone when they end. A link (link.c) is no more than a client id; its rights hang on the
 * token of the present worker and end with it.
 *
 * ORDER. A client is blocked before its job can be seen by the worker, so no answer can come too early. Jobs leave the queue
 * when the reply to QA.NEXT is written and not when a waiting link is woken: a link that dies in between takes none with it.
 * What a job writes, it writes in the context of QA.DONE (or of a timer), where replication is in order; the client's reply
 * follows in the same round of the event loop. A worker's death is handled in a timer for the same reason.
 *
 * REJECTED. Threads that run models in the server: a crash there is a crash of the data set. A socket of our own for jobs: a
 * second protocol to frame, authenticate and bound, for a saving of few microseconds. Forking workers. Blocking the server
 * for a function's answer, with the one exception of QA.ATOMIC, which is leased by the millisecond (atomic.c). */
#include "module.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cmd_rg.h"
#include "server/config.h"
#include "ai/dag.h"
#include "functions/hook.h"
#include "info.h"
#include "jobs/jobs.h"
#include "server/link.h"
#include "values/model.h"
#include "functions/registry.h"
#include "values/runnable.h"
#include "values/script.h"
#include "functions/stream.h"
#include "worker/supervisor.h"
#include "values/tensor.h"

#define EXPORTED __attribute__((visibility("default")))

#define DEFINE(returns, name, arguments) returns(*RedisModule_##name) arguments;
REDISMODULE_REQUIRED_FUNCTIONS(DEFINE)
REDISMODULE_OPTIONAL_FUNCTIONS(DEFINE)
#undef DEFINE

static RedisModuleCtx *detached;
static int is_valkey; /* flags that the other server does not have, or uses for something else */

/* A module's context begins with the function that finds all others: the only thing about it that is fixed. */
const char *module_api_load(RedisModuleCtx *ctx) {
    int (*get_api)(const char *, void *) = NULL;
    memcpy(&get_api, ctx, sizeof get_api);
#define FETCH(name) get_api("RedisModule_" #name, (void *)&RedisModule_##name)
#define REQUIRE(returns, name, arguments)                                                                              \
    if (FETCH(name) != REDISMODULE_OK) return #name;
#define TRY(returns, name, arguments)                                                                                  \
    if (FETCH(name) != REDISMODULE_OK) RedisModule_##name = NULL;
    REDISMODULE_REQUIRED_FUNCTIONS(REQUIRE)
    REDISMODULE_OPTIONAL_FUNCTIONS(TRY)
#undef TRY
#undef REQUIRE
#undef FETCH
    return NULL;
}

RedisModuleCtx *module_ctx(void) { return detached; }

int module_is_active_primary(RedisModuleCtx *ctx) {
    int flags = RedisModule_GetContextFlags(ctx);
    return (flags & REDISMODULE_CTX_FLAGS_MASTER) && !(flags & REDISMODULE_CTX_FLAGS_LOADING);
}

int module_from_log(RedisModuleCtx *ctx) {
    return (RedisModule_GetContextFlags(ctx) & (REDISMODULE_CTX_FLAGS_REPLICATED | REDISMODULE_CTX_FLAGS_LOADING)) != 0;
}

/* A slot is on its way here by CLUSTER MIGRATESLOTS: its keys are there already, and nobody may see them yet. */
int module_is_importing(RedisModuleCtx *ctx) {
    return is_valkey && (RedisModule_GetContextFlags(ctx) & VALKEYMODULE_CTX_FLAGS_SLOT_IMPORT_CLIENT);
}

static int find_valkey(RedisModuleCtx *ctx) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "INFO", "c", "server");
    RedisModuleString *info = reply ? RedisModule_CreateStringFromCallReply(reply) : NULL;
    int found = info && strstr(RedisModule_StringPtrLen(info, NULL), "valkey_version:");
    if (info) RedisModule_FreeString(ctx, info);
    if (reply) RedisModule_FreeCallReply(reply);
    return found;
}

int module_blocking_denied(RedisModuleCtx *ctx) {
    return (RedisModule_GetContextFlags(ctx) & (REDISMODULE_CTX_FLAGS_MULTI | REDISMODULE_CTX_FLAGS_LUA |
                                                REDISMODULE_CTX_FLAGS_DENY_BLOCKING | REDISMODULE_CTX_FLAGS_LOADING)) != 0;
}

/* Redis 7.0 crashes when asked for the current user of a client that has none. Scripts run on a client that is in no list. */
RedisModuleString *module_caller_name(RedisModuleCtx *ctx) {
    if (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_LUA) return RedisModule_GetCurrentUserName(ctx);
    return RedisModule_GetClientUserNameById(ctx, RedisModule_GetClientId(ctx));
}

int module_require_admin(RedisModuleCtx *ctx, const char *command) {
    if (RedisModule_SetCommandACLCategories || module_from_log(ctx)) return 1;
    /* What link_create_user gives the worker by name. */
    if (!strncasecmp(command, "ai.", 3) && link_is_link(RedisModule_GetClientId(ctx))) return 1;
    return module_is_admin(ctx, command);
}

/* CONFIG RESETSTAT stands for the category: administrators may, others may not. A user of another module (the worker's) has no
 * name to be looked up by and was let through by its own rules. */
int module_is_admin(RedisModuleCtx *ctx, const char *command) {
    RedisModuleString *name = module_caller_name(ctx);
    RedisModuleUser *user = name ? RedisModule_GetModuleUserFromUserName(name) : NULL;
    int allowed = 0;
    if (user) {
        RedisModuleString *argv[2] = {RedisModule_CreateString(NULL, "config", 6), RedisModule_CreateString(NULL, "resetstat", 9)};
        allowed = RedisModule_ACLCheckCommandPermissions(user, argv, 2) == REDISMODULE_OK;
        for (int i = 0; i < 2; i++) RedisModule_FreeString(NULL, argv[i]);
        RedisModule_FreeModuleUser(user);
    }
    if (!allowed) {
        char error[256];
        snprintf(error, sizeof error, "NOPERM User %.100s has no permissions to run the '%s' command",
                 name ? RedisModule_StringPtrLen(name, NULL) : "?", command);
        RedisModule_ReplyWithError(ctx, error);
    }
    if (name) RedisModule_FreeString(ctx, name);
    return allowed;
}

RedisModuleString *module_setting(RedisModuleCtx *ctx, const char *name) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "CONFIG", "cc", "GET", name);
    RedisModuleString *value = NULL;
    if (reply && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ARRAY && RedisModule_CallReplyLength(reply) == 2)
        value = RedisModule_CreateStringFromCallReply(RedisModule_CallReplyArrayElement(reply, 1));
    if (reply) RedisModule_FreeCallReply(reply);
    return value ? value : RedisModule_CreateString(NULL, "", 0);
}

int module_setting_is(RedisModuleCtx *ctx, const char *name, const char *expected) {
    RedisModuleString *value = module_setting(ctx, name);
    int is = !strcmp(RedisModule_StringPtrLen(value, NULL), expected);
    RedisModule_FreeString(NULL, value);
    return is;
}

/* A module's command is in no category of its own accord, whatever its flags are: users would have it that must not. */
static void derive_categories(const char *flags, char *to, size_t size) {
    snprintf(to, size, "%s%s%s%s", strstr(flags, "admin") ? "admin dangerous " : "", strstr(flags, "write") ? "write " : "",
             strstr(flags, "readonly") ? "read " : "", strstr(flags, "fast") ? "fast" : "slow");
}

static int set_categories(const CommandSpec *spec, RedisModuleCommand *command) {
    if (!RedisModule_SetCommandACLCategories) return REDISMODULE_OK;
    char derived[64];
    derive_categories(spec->flags, derived, sizeof derived);
    return RedisModule_SetCommandACLCategories(command, spec->categories ? spec->categories : derived);
}

/* To the server the key of any module's command is read and written, unless it is told. */
static int set_key_is_read(const CommandSpec *spec, RedisModuleCommand *command) {
    if (!spec->first_key || !strstr(spec->flags, "readonly")) return REDISMODULE_OK;
    RedisModuleCommandKeySpec keys[2] = {{.flags = REDISMODULE_CMD_KEY_RO | REDISMODULE_CMD_KEY_ACCESS,
                                          .begin_search_type = REDISMODULE_KSPEC_BS_INDEX,
                                          .bs.index.pos = spec->first_key}};
    RedisModuleCommandInfoVersion version = {.version = 1, .sizeof_key_spec = sizeof *keys};
    RedisModuleCommandInfo info = {.version = &version, .key_specs = keys};
    return RedisModule_SetCommandInfo(command, &info);
}

int module_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const CommandSpec *spec = &table[i];
        if (RedisModule_CreateCommand(ctx, spec->name, spec->handler, spec->flags, spec->first_key, spec->last_key,
                                      spec->key_step) != REDISMODULE_OK) {
            RedisModule_Log(ctx, "warning", "command %s cannot be registered (flags: %s)", spec->name, spec->flags);
            return REDISMODULE_ERR;
        }
        if (!strncasecmp(spec->name, "qa.", 3) || !strncasecmp(spec->name, "ai.", 3)) link_allow_command(spec->name);
        RedisModuleCommand *command = RedisModule_GetCommand(ctx, spec->name);
        if (!command || set_categories(spec, command) != REDISMODULE_OK || set_key_is_read(spec, command) != REDISMODULE_OK) {
            RedisModule_Log(ctx, "warning", "command %s: the server does not take its ACL categories or keys", spec->name);
            return REDISMODULE_ERR;
        }
    }
    return REDISMODULE_OK;
}

EXPORTED int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const char *missing = module_api_load(ctx);
    if (missing) {
        fprintf(stderr, "qa: this server has no RedisModule_%s; Redis 7.0 or Valkey 8 is needed\n", missing);
        return REDISMODULE_ERR;
    }
    RedisModule_SetModuleAttribs(ctx, QA_MODULE_NAME, QA_MODULE_VERSION, REDISMODULE_APIVER_1);
    detached = RedisModule_GetDetachedThreadSafeContext(ctx);
    is_valkey = find_valkey(ctx);
    RedisModule_SetModuleOptions(ctx, REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED |
                                          (is_valkey ? VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION : 0));
    if (config_on_load(ctx, argv, argc) != REDISMODULE_OK) return REDISMODULE_ERR;
    int (*const parts[])(RedisModuleCtx *) = {jobs_on_load,  link_on_load, registry_on_load, hook_on_load, stream_on_load,
                                              tensor_on_load, model_on_load, script_on_load, runnable_on_load,
                                              dag_on_load, ai_config_on_load, rg_on_load, info_on_load,
                                              link_create_user, supervisor_on_load};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i](ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return REDISMODULE_OK;
}

/* Keys of our types, blocked clients and a process of ours do not outlive the code. */
EXPORTED int RedisModule_OnUnload(RedisModuleCtx *ctx) {
    RedisModule_Log(ctx, "warning", "the module qa cannot be unloaded");
    return REDISMODULE_ERR;
}

/* Creates event jobs from keyspace notifications, and implements the keymiss hook in three steps:
 * 1. The command filter puts RG.INNERHOOK before a read that a registration hooks.
 * 2. RG.INNERHOOK runs the read with the caller's rights and keeps the reply. If a key is missing, the server notifies
 *    the module during the read, and on_miss stores the registration in the innermost HookCall.
 * 3. If on_miss has stored a registration, RG.INNERHOOK blocks the client until the function has answered. If not, the
 *    client gets the reply of the read.
 * A HookCall is the state of one RG.INNERHOOK, on the C stack. HookCalls form a chain, because a hooked read can run
 * inside another hooked read.
 *
 * The filter and the notifications run for every command of the server, so they must be fast. They return early if no
 * KeysReader registration has a prefix that starts with the first byte of the key. */
#include "functions/hook.h"

#include <string.h>

#include "functions/from_primary.h"
#include "functions/hooked_commands.h"
#include "functions/registry.h"
#include "functions/registry_stats.h"
#include "jobs/jobs.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/links.h"
#include "server/resp_reply.h"
#include "server/server.h"

/* The state of the hooked read that runs now. If a key of the read is missing, on_miss stores the registration here. */
typedef struct HookCall {
    const HookedCommand *command;
    int suppressed; /* 1: the read calls no function, because the worker or the primary sent it */
    Registration *registration;
    RedisModuleString *key;
    struct HookCall *outer;
} HookCall;

HookStats hook_stats;

static int caller_is_link; /* 1: a link has sent the current command; set by the command filter; always 0 on Redis
                            * 7.0 */
static HookCall *call;

/* ---- Event jobs ---- */

typedef struct Event {
    RedisModuleString *id;
    RedisModuleString *key;
    char *name;
    char *captured; /* the reply of the hooked command as RESP; NULL: no client waits */
    size_t captured_length;
} Event;

static int emit_event(RedisModuleCtx *ctx, void *data) {
    const Event *event = data;
    RedisModule_ReplyWithString(ctx, event->id);
    RedisModule_ReplyWithCString(ctx, event->name);
    RedisModule_ReplyWithString(ctx, event->key);
    RedisModule_ReplyWithLongLong(ctx, event->captured != NULL);
    return 4;
}

static const char *finish_event(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    const Event *event = data;
    if (event->captured && result->status == JOB_OVERRIDE) hook_stats.inferences++;
    registry_ended(event->id, result);
    return NULL;
}

/* If the function fails, the client gets the reply of its own read. The client gets an error only if the worker has
 * died twice on the job, or if the job was removed from a full queue. */
static void reply_event(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    const Event *event = data;
    int not_run = result->cause == CAUSE_LOST || result->cause == CAUSE_PUSHED_OUT;
    if ((result->status == JOB_FAILED && not_run) || (result->status == JOB_OVERRIDE && result->argc))
        job_default_reply(ctx, result);
    else resp_reply(ctx, event->captured, event->captured_length, RESP_3);
}

static void free_event(void *data) {
    Event *event = data;
    RedisModule_FreeString(NULL, event->id);
    RedisModule_FreeString(NULL, event->key);
    RedisModule_Free(event->name);
    RedisModule_Free(event->captured);
    RedisModule_Free(event);
}

static RedisModuleString *event_registration(void *data) { return ((Event *)data)->id; }

static RedisModuleString *event_key(void *data) { return ((Event *)data)->key; }

/* An event costs 1 if a client waits for it, because its function then reads one sentence. */
static uint32_t event_cost(void *data) { return ((Event *)data)->captured != NULL; }

#define EVENT_METHODS                                                                                                  \
    .kind = "event", .emit = emit_event, .finish = finish_event, .reply = reply_event, .free = free_event,             \
    .awaited = event_key, .registration = event_registration
static const JobClass EVENT = {EVENT_METHODS, .of_user = 1};
static const JobClass OWN_EVENT = {EVENT_METHODS, .cost = event_cost};

static Event *new_event(const Registration *registration, const char *name, RedisModuleString *key) {
    Event *event = RedisModule_Calloc(1, sizeof *event);
    event->id = RedisModule_CreateStringFromString(NULL, registration->fields[REG_ID]);
    event->key = RedisModule_CreateStringFromString(NULL, key);
    event->name = RedisModule_Strdup(name);
    return event;
}

static void queue_event(Registration *registration, const char *name, RedisModuleString *key) {
    long long limit_ms = registration->own ? config.script_timeout_ms : config.background_timeout_ms;
    const JobClass *class = registration->own ? &OWN_EVENT : &EVENT;
    int queued = jobs_submit(class, new_event(registration, name, key), limit_ms ? limit_ms : -1);
    registry_triggered(registration, queued);
    hook_stats.dropped_events += !queued;
}

/* ---- Keyspace notifications ---- */

/* Handles the miss of a key that the registration matches. A registration without `commands` gets an event. A
 * registration with `commands` gets only the misses of hooked reads with these commands. The first such registration of
 * a read answers the client, so this function stores it in `call`. Later registrations get an event. */
static void on_miss(Registration *registration, RedisModuleString *key) {
    size_t length;
    RedisModule_StringPtrLen(registration->fields[REG_COMMANDS], &length);
    if (!length) {
        queue_event(registration, "keymiss", key);
        return;
    }
    if (!call || !registration_list_has(registration->fields[REG_COMMANDS], call->command->name, call->command->length))
        return;
    if (call->registration) {
        queue_event(registration, "keymiss", key);
        return;
    }
    call->registration = registration;
    call->key = RedisModule_CreateStringFromString(NULL, key);
}

static int on_notify(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (!registry_may_match_key(text, length)) return REDISMODULE_OK;
    int miss = type == REDISMODULE_NOTIFY_KEY_MISS;
    if (miss && (link_in_block() || caller_is_link || (call && call->suppressed))) return REDISMODULE_OK;
    if (RedisModule_GetSelectedDb(ctx) != 0 || !server_is_active_primary(ctx)) return REDISMODULE_OK;
    if (server_is_importing(ctx))
        return REDISMODULE_OK; /* the source shard of the slot has already handled these keys */
    for (Registration *at = registry_first(); at; at = at->next) {
        if (at->source != SOURCE_KEYS || !registration_matches_key(at, text, length)) continue;
        if (!registration_wants_event(at, event)) continue;
        if (miss) on_miss(at, key);
        else queue_event(at, event, key);
    }
    return REDISMODULE_OK;
}

/* ---- The command filter ---- */

static int is_hooked_key(const RedisModuleString *key, const HookedCommand *command) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (!registry_may_match_key(text, length)) return 0;
    for (Registration *at = registry_first(); at; at = at->next)
        if (at->source == SOURCE_KEYS && registration_matches_key(at, text, length) &&
            registration_list_has(at->fields[REG_COMMANDS], command->name, command->length))
            return 1;
    return 0;
}

static void on_command(RedisModuleCommandFilterCtx *filter) {
    if (from_primary_guard(filter)) return;
    if (!registry_any_keys()) return;
    caller_is_link = RedisModule_CommandFilterGetClientId && link_is_link(RedisModule_CommandFilterGetClientId(filter));
    if (!hooked_commands_count() || caller_is_link) return;
    int argc = RedisModule_CommandFilterArgsCount(filter);
    if (argc < 2) return;
    size_t length;
    const char *name = RedisModule_StringPtrLen(RedisModule_CommandFilterArgGet(filter, 0), &length);
    const HookedCommand *command = hooked_commands_find(name, length);
    if (!command) return;
    int last = command->last_key < 0 ? argc + command->last_key : command->last_key;
    for (int i = command->first_key; i <= last && i < argc; i += command->key_step) {
        if (!is_hooked_key(RedisModule_CommandFilterArgGet(filter, i), command)) continue;
        RedisModule_CommandFilterArgInsert(filter, 0, RedisModule_CreateString(NULL, "RG.INNERHOOK", 12));
        return;
    }
}

/* ---- RG.INNERHOOK ---- */

/* Reports the keys of the hooked command to the server. Reports no keys for a command that is not hooked, such as
 * RG.INNERHOOK itself: otherwise many nested RG.INNERHOOKs would overflow the stack. */
static int report_keys(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    int count = 0, *flags = NULL;
    size_t length = 0;
    const char *name = argc < 2 ? "" : RedisModule_StringPtrLen(argv[1], &length);
    if (!hooked_commands_find(name, length)) return REDISMODULE_OK;
    int *positions = RedisModule_GetCommandKeysWithFlags(ctx, argv + 1, argc - 1, &count, &flags);
    for (int i = 0; positions && i < count; i++) RedisModule_KeyAtPosWithFlags(ctx, positions[i] + 1, flags[i]);
    RedisModule_Free(positions);
    RedisModule_Free(flags);
    return REDISMODULE_OK;
}

/* The sender of a hooked read. */
typedef struct Caller {
    RedisModuleUser *user; /* NULL: the sender has no user, or a user that the server does not find by name */
    int is_worker;         /* 1: the sender is a link, or a script that a link has started */
    int is_foreign;        /* 1: only a different module knows its user */
} Caller;

static Caller find_caller(RedisModuleCtx *ctx) {
    Caller caller = {.is_worker = link_is_link(RedisModule_GetClientId(ctx))};
    RedisModuleString *name = caller.is_worker ? NULL : caller_name(ctx);
    if (!name) return caller;
    caller.user = RedisModule_GetModuleUserFromUserName(name);
    if (!caller.user) caller.is_worker = !strcmp(RedisModule_StringPtrLen(name, NULL), LINK_USER_NAME);
    caller.is_foreign = !caller.user && !caller.is_worker;
    RedisModule_FreeString(ctx, name);
    return caller;
}

/* Runs the wrapped command with the caller's rights. NULL: the caller lacks the rights. */
static RedisModuleCallReply *run_original(RedisModuleCtx *ctx, RedisModuleString **argv, int argc,
                                          const Caller *caller) {
    const char *name = RedisModule_StringPtrLen(argv[1], NULL);
    if (caller->is_foreign) return NULL;
    if (!caller->user) return RedisModule_Call(ctx, name, "0Ev", argv + 2, (size_t)argc - 2);
    RedisModule_SetContextUser(ctx, caller->user);
    /* RedisModule_Call repeats this check, but if it refuses on Redis 7.0, it does not reply with NOPERM. */
    int allowed = RedisModule_ACLCheckCommandPermissions(caller->user, argv + 1, argc - 1) == REDISMODULE_OK;
    RedisModuleCallReply *reply = allowed ? RedisModule_Call(ctx, name, "0CEv", argv + 2, (size_t)argc - 2) : NULL;
    RedisModule_SetContextUser(ctx, NULL);
    return reply;
}

/* Blocks the client until the function of the registration answers. If the client cannot be blocked, queues an event
 * for the function and replies with the result of the read. */
static void answer_miss(RedisModuleCtx *ctx, const HookCall *missed, RedisModuleCallReply *reply) {
    Registration *registration = missed->registration;
    hook_stats.misses++;
    if (caller_blocking_denied(ctx) || jobs_refusal()) {
        queue_event(registration, "keymiss", missed->key);
        RedisModule_ReplyWithCallReply(ctx, reply);
        return;
    }
    size_t length;
    const char *proto = RedisModule_CallReplyProto(reply, &length);
    Event *event = new_event(registration, "keymiss", missed->key);
    event->captured = RedisModule_Alloc(length + 1);
    memcpy(event->captured, proto, length);
    event->captured_length = length;
    registry_triggered(registration, 1);
    const JobClass *class = registration->own ? &OWN_EVENT : &EVENT;
    if (!jobs_submit_blocking(ctx, class, event, config.hook_timeout_ms)) registration->counters.triggered--;
}

static int RG_INNERHOOK_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, argv, argc);
    if (argc < 3) return RedisModule_WrongArity(ctx);
    size_t length;
    const char *name = RedisModule_StringPtrLen(argv[1], &length);
    const HookedCommand *command = hooked_commands_find(name, length);
    if (!command) return RedisModule_ReplyWithError(ctx, "ERR RG.INNERHOOK runs only commands that a function hooks");
    Caller caller = find_caller(ctx);
    int replicated = RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_REPLICATED;
    HookCall mine = {.command = command, .outer = call};
    mine.suppressed = caller.is_worker || replicated;
    call = &mine;
    RedisModuleCallReply *reply = run_original(ctx, argv, argc, &caller);
    call = mine.outer;
    if (caller.user) RedisModule_FreeModuleUser(caller.user);
    if (!reply) {
        RedisModule_ReplyWithError(ctx,
                                   "NOPERM this user has no permissions to run the hooked command or access its keys");
    } else if (mine.registration) {
        answer_miss(ctx, &mine, reply);
    } else {
        hook_stats.hits++;
        RedisModule_ReplyWithCallReply(ctx, reply);
    }
    if (reply) RedisModule_FreeCallReply(reply);
    if (mine.key) RedisModule_FreeString(NULL, mine.key);
    return REDISMODULE_OK;
}

int hook_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.innerhook", RG_INNERHOOK_RedisCommand, "readonly getkeys-api", 0, 0, 0, "read slow"},
    };
    if (commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (!RedisModule_RegisterCommandFilter(ctx, on_command, REDISMODULE_CMDFILTER_NOSELF)) return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_ALL | REDISMODULE_NOTIFY_KEY_MISS, on_notify);
}

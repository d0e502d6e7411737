#include "functions/hook.h"

#include <string.h>
#include <strings.h>

#include "functions/atomic.h"
#include "server/config.h"
#include "jobs/jobs.h"
#include "server/link.h"
#include "module.h"
#include "functions/registry.h"
#include "functions/registry_stats.h"
#include "server/resp_reply.h"
#include "worker/supervisor.h"

enum { MAX_COMMAND_NAME = 32, MAX_HOOKED = 64 };

/* A command that some registration hooks, and where its keys are. */
typedef struct HookedCommand {
    char name[MAX_COMMAND_NAME];
    size_t length;
    int first_key, last_key, key_step;
} HookedCommand;

/* The hooked read that is being run, for the notification it may cause. */
typedef struct HookCall {
    const HookedCommand *command;
    int suppressed; /* run for the worker, on a replica ..: nobody is to be called */
    Registration *registration;
    RedisModuleString *key;
    struct HookCall *outer;
} HookCall;

HookStats hook_stats;

static HookedCommand hooked[MAX_HOOKED];
static int hooked_count;
static unsigned char first_bytes[256 / 8]; /* of the prefixes of KeysReader registrations */
static int any_keys;
static int caller_is_link; /* as far as the command filter can tell; never on Redis 7.0 */
static HookCall *call;

/* ---- Which commands ---- */

static int has_flag(RedisModuleCallReply *flags, const char *flag) {
    for (size_t i = 0; i < RedisModule_CallReplyLength(flags); i++) {
        size_t length;
        const char *text = RedisModule_CallReplyStringPtr(RedisModule_CallReplyArrayElement(flags, i), &length);
        if (text && length == strlen(flag) && !memcmp(text, flag, length)) return 1;
    }
    return 0;
}

static long long element(RedisModuleCallReply *array, size_t index) {
    return RedisModule_CallReplyInteger(RedisModule_CallReplyArrayElement(array, index));
}

/* COMMAND INFO: name, arity, flags, first key, last key, step .. NULL: fits, and is described in `command`. */
static const char *describe(RedisModuleCtx *ctx, HookedCommand *command) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "COMMAND", "cb", "INFO", command->name, command->length);
    RedisModuleCallReply *info = NULL;
    const char *problem = NULL;
    if (reply && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ARRAY && RedisModule_CallReplyLength(reply) == 1)
        info = RedisModule_CallReplyArrayElement(reply, 0);
    if (!info || RedisModule_CallReplyType(info) != REDISMODULE_REPLY_ARRAY || RedisModule_CallReplyLength(info) < 6) {
        problem = "that does not exist";
    } else {
        RedisModuleCallReply *flags = RedisModule_CallReplyArrayElement(info, 2);
        command->first_key = (int)element(info, 3);
        command->last_key = (int)element(info, 4);
        command->key_step = (int)element(info, 5);
        if (has_flag(flags, "noscript")) problem = "which is not allowed inside a script";
        else if (has_flag(flags, "movablekeys")) problem = "with moveable keys";
        else if (!has_flag(flags, "readonly")) problem = "which is not read only";
        else if (command->first_key <= 0 || command->key_step <= 0) problem = "by key prefix with none positive first key";
    }
    if (reply) RedisModule_FreeCallReply(reply);
    return problem;
}

/* Takes the first word off a comma separated list: 0 when there is none. */
static int next_word(const char **at, size_t *left, const char **word, size_t *length) {
    if (!*left) return 0;
    const char *comma = memchr(*at, ',', *left);
    *word = *at;
    *length = comma ? (size_t)(comma - *at) : *left;
    *left -= *length + (comma != NULL);
    *at += *length + (comma != NULL);
    return 1;
}

static int set_name(HookedCommand *command, const char *word, size_t length) {
    if (length == 0 || length >= MAX_COMMAND_NAME) return 0;
    memset(command, 0, sizeof *command);
    memcpy(command->name, word, length);
    command->length = length;
    return 1;
}

RedisModuleString *hook_check_commands(RedisModuleCtx *ctx, RedisModuleString *commands) {
    size_t left, length;
    const char *at = RedisModule_StringPtrLen(commands, &left), *word;
    while (next_word(&at, &left, &word, &length)) {
        HookedCommand command;
        const char *problem = set_name(&command, word, length) ? describe(ctx, &command) : "that does not exist";
        if (problem)
            return RedisModule_CreateStringPrintf(NULL, "ERR Can not hook a command %s: %.*s", problem, (int)length, word);
    }
    return NULL;
}

static const HookedCommand *find_hooked(const char *name, size_t length) {
    for (int i = 0; i < hooked_count; i++)
        if (hooked[i].length == length && !strncasecmp(hooked[i].name, name, length)) return &hooked[i];
    return NULL;
}

static void add_hooked(const char *word, size_t length) {
    HookedCommand command;
    if (find_hooked(word, length) || !set_name(&command, word, length)) return;
    if (hooked_count == MAX_HOOKED || describe(module_ctx(), &command)) {
        RedisModule_Log(module_ctx(), "warning", "command %.*s cannot be hooked on this server", (int)length, word);
        return;
    }
    hooked[hooked_count++] = command;
}

void hook_rebuild(void) {
    hooked_count = any_keys = 0;
    memset(first_bytes, 0, sizeof first_bytes);
    for (Registration *at = registry_first(); at; at = at->next) {
        if (at->reader != READER_KEYS) continue;
        any_keys = 1;
        if (at->match_length) first_bytes[(unsigned char)*at->match / 8] |= (unsigned char)(1 << ((unsigned char)*at->match % 8));
        else memset(first_bytes, 0xff, sizeof first_bytes);
        size_t left, length;
        const char *list = RedisModule_StringPtrLen(at->fields[REG_COMMANDS], &left), *word;
        while (next_word(&list, &left, &word, &length)) add_hooked(word, length);
    }
}

/* Most keys of a server are nobody's business: told by their first byte. */
static int may_match(const char *key, size_t length) {
    unsigned char first = length ? (unsigned char)*key : 0;
    return any_keys && (first_bytes[first / 8] >> (first % 8) & 1);
}

/* ---- Event jobs ---- */

typedef struct Event {
    RedisModuleString *id;
    RedisModuleString *key;
    char *name;
    char *captured; /* the hooked command's own reply, RESP; NULL: nobody waits */
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
    (void)ctx;
    const Event *event = data;
    if (event->captured && result->status == JOB_OVERRIDE) hook_stats.inferences++;
    registry_ended(event->id, result);
    return NULL;
}

/* Whatever went wrong in the function, the client gets what its command would have given it; but a lost worker is told. */
static void reply_event(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    const Event *event = data;
    int lost = result->status == JOB_FAILED && result->cause == CAUSE_LOST;
    if (lost || (result->status == JOB_OVERRIDE && result->argc)) jobs_default_reply(ctx, result);
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

static const JobClass EVENT = {.kind = "event",
                               .emit = emit_event,
                               .finish = finish_event,
                               .reply = reply_event,
                               .free = free_event,
                               .registration = event_registration};

static Event *new_event(const Registration *registration, const char *name, RedisModuleString *key) {
    Event *event = RedisModule_Calloc(1, sizeof *event);
    event->id = RedisModule_CreateStringFromString(NULL, registration->fields[REG_ID]);
    event->key = RedisModule_CreateStringFromString(NULL, key);
    event->name = RedisModule_Strdup(name);
    return event;
}

static void queue_event(RedisModuleCtx *ctx, Registration *registration, const char *name, RedisModuleString *key) {
    int queued = jobs_submit(ctx, &EVENT, new_event(registration, name, key), config.script_timeout_ms);
    registry_triggered(registration, queued);
    hook_stats.dropped_events += !queued;
}

/* ---- Keyspace notifications ---- */

/* A registration with `commands` is called for misses of these commands only. */
static void on_miss(RedisModuleCtx *ctx, Registration *registration, RedisModuleString *key) {
    size_t length;
    RedisModule_StringPtrLen(registration->fields[REG_COMMANDS], &length);
    if (!length) {
        queue_event(ctx, registration, "keymiss", key);
        return;
    }
    if (!call || !registration_list_has(registration->fields[REG_COMMANDS], call->command->name, call->command->length))
        return;
    if (call->registration) {
        queue_event(ctx, registration, "keymiss", key);
        return;
    }
    call->registration = registration;
    call->key = RedisModule_CreateStringFromString(NULL, key);
}

static int on_notify(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (!may_match(text, length)) return REDISMODULE_OK;
    int miss = type == REDISMODULE_NOTIFY_KEY_MISS;
    if (miss && (atomic_running() || caller_is_link || (call && call->suppressed))) return REDISMODULE_OK;
    if (RedisModule_GetSelectedDb(ctx) != 0 || !module_is_active_primary(ctx)) return REDISMODULE_OK;
    if (module_is_importing(ctx)) return REDISMODULE_OK; /* what they mean was done where they come from */
    for (Registration *at = registry_first(); at; at = at->next) {
        if (at->reader != READER_KEYS || !registration_matches_key(at, text, length)) continue;
        if (!registration_wants_event(at, event)) continue;
        if (miss) on_miss(ctx, at, key);
        else queue_event(ctx, at, event, key);
    }
    return REDISMODULE_OK;
}

/* ---- The command filter ---- */

static int is_hooked_key(const RedisModuleString *key, const HookedCommand *command) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (!may_match(text, length)) return 0;
    for (Registration *at = registry_first(); at; at = at->next)
        if (at->reader == READER_KEYS && registration_matches_key(at, text, length) &&
            registration_list_has(at->fields[REG_COMMANDS], command->name, command->length))
            return 1;
    return 0;
}

static void on_command(RedisModuleCommandFilterCtx *filter) {
    if (!any_keys) return;
    caller_is_link =
        RedisModule_CommandFilterGetClientId && link_is_link(RedisModule_CommandFilterGetClientId(filter));
    if (!hooked_count || caller_is_link) return;
    int argc = RedisModule_CommandFilterArgsCount(filter);
    if (argc < 2) return;
    size_t length;
    const char *name = RedisModule_StringPtrLen(RedisModule_CommandFilterArgGet(filter, 0), &length);
    const HookedCommand *command = find_hooked(name, length);
    if (!command) return;
    int last = command->last_key < 0 ? argc + command->last_key : command->last_key;
    for (int i = command->first_key; i <= last && i < argc; i += command->key_step) {
        if (!is_hooked_key(RedisModule_CommandFilterArgGet(filter, i), command)) continue;
        RedisModule_CommandFilterArgInsert(filter, 0, RedisModule_CreateString(NULL, "RG.INNERHOOK", 12));
        return;
    }
}

/* ---- RG.INNERHOOK ---- */

/* Of what it would run and nothing else: words that wrap it in itself would make the server call itself until its stack is full. */
static int report_keys(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    int count = 0, *flags = NULL;
    size_t length = 0;
    const char *name = argc < 2 ? "" : RedisModule_StringPtrLen(argv[1], &length);
    if (!find_hooked(name, length)) return REDISMODULE_OK;
    int *positions = RedisModule_GetCommandKeysWithFlags(ctx, argv + 1, argc - 1, &count, &flags);
    for (int i = 0; positions && i < count; i++) RedisModule_KeyAtPosWithFlags(ctx, positions[i] + 1, flags[i]);
    RedisModule_Free(positions);
    RedisModule_Free(flags);
    return REDISMODULE_OK;
}

/* Whose read it is. */
typedef struct Caller {
    RedisModuleUser *user; /* NULL: nobody whose rights could be asked for */
    int is_worker;         /* a link, or a script that a link runs */
    int is_foreign;        /* a user that only some other module knows */
} Caller;

static Caller find_caller(RedisModuleCtx *ctx) {
    Caller caller = {.is_worker = link_is_link(RedisModule_GetClientId(ctx))};
    RedisModuleString *name = caller.is_worker ? NULL : module_caller_name(ctx);
    if (!name) return caller;
    caller.user = RedisModule_GetModuleUserFromUserName(name);
    if (!caller.user) caller.is_worker = !strcmp(RedisModule_StringPtrLen(name, NULL), LINK_USER_NAME);
    caller.is_foreign = !caller.user && !caller.is_worker;
    RedisModule_FreeString(ctx, name);
    return caller;
}

/* Runs the wrapped command with the rights of the caller; NULL: it may not. */
static RedisModuleCallReply *run_original(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, const Caller *caller) {
    const char *name = RedisModule_StringPtrLen(argv[1], NULL);
    if (caller->is_foreign) return NULL;
    if (!caller->user) return RedisModule_Call(ctx, name, "0Ev", argv + 2, (size_t)argc - 2);
    RedisModule_SetContextUser(ctx, caller->user);
    /* The call checks the same again, but Redis 7.0 does not say NOPERM when it refuses. */
    int allowed = RedisModule_ACLCheckCommandPermissions(caller->user, argv + 1, argc - 1) == REDISMODULE_OK;
    RedisModuleCallReply *reply = allowed ? RedisModule_Call(ctx, name, "0CEv", argv + 2, (size_t)argc - 2) : NULL;
    RedisModule_SetContextUser(ctx, NULL);
    return reply;
}

/* Blocks the client for the registration that was found, or leaves it its own reply where blocking is not possible. */
static void answer_miss(RedisModuleCtx *ctx, const HookCall *missed, RedisModuleCallReply *reply) {
    Registration *registration = missed->registration;
    hook_stats.misses++;
    if (module_blocking_denied(ctx) || supervisor_refusal()) {
        queue_event(ctx, registration, "keymiss", missed->key);
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
    if (!jobs_submit_blocking(ctx, &EVENT, event, config.hook_timeout_ms)) registration->counters.triggered--;
}

int hook_inner_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_IsKeysPositionRequest(ctx)) return report_keys(ctx, argv, argc);
    if (argc < 3) return RedisModule_WrongArity(ctx);
    size_t length;
    const char *name = RedisModule_StringPtrLen(argv[1], &length);
    const HookedCommand *command = find_hooked(name, length);
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
        RedisModule_ReplyWithError(ctx, "NOPERM this user has no permissions to run the hooked command or access its keys");
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
    if (!RedisModule_RegisterCommandFilter(ctx, on_command, REDISMODULE_CMDFILTER_NOSELF)) return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_ALL | REDISMODULE_NOTIFY_KEY_MISS, on_notify);
}

/* RG.TRIGGER and RG.TRIGGERONKEY: a client calls the function of a CommandReader registration by the name of the
 * registration's trigger, and waits for the result.
 *
 * The job refers to the registration by id, because the registration may no longer exist when the job ends. The job has
 * the name of its caller (the client's user), because the function runs with the caller's rights. */
#include "functions/registry.h"
#include "functions/registry_stats.h"
#include "jobs/jobs.h"
#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/pairs.h"

typedef struct Trigger {
    RedisModuleString *registration;
    RedisModuleString *user; /* the caller; NULL: the caller has no name */
    ArgList words;           /* the name of the trigger and its arguments */
    int cost_from;           /* as in Registration (registration.h) */
} Trigger;

static void free_trigger(void *data) {
    Trigger *trigger = data;
    RedisModule_FreeString(NULL, trigger->registration);
    if (trigger->user) RedisModule_FreeString(NULL, trigger->user);
    arg_list_free(&trigger->words);
    RedisModule_Free(trigger);
}

static int emit_trigger(RedisModuleCtx *ctx, void *data) {
    Trigger *trigger = data;
    RedisModule_ReplyWithString(ctx, trigger->registration);
    reply_optional(ctx, trigger->user);
    return 2 + arg_list_emit(ctx, &trigger->words);
}

static const char *finish_trigger(RedisModuleCtx *ctx, void *data, const JobResult *result) {
    registry_ended(((Trigger *)data)->registration, result);
    return NULL;
}

static RedisModuleString *trigger_registration(void *data) { return ((Trigger *)data)->registration; }

/* The cost is the larger of two numbers: the number of arguments from `cost_from` on, and the length of all arguments
 * in units of COST_BYTES. A sentence with the sentences before and after it has about COST_BYTES bytes. */
static uint32_t trigger_cost(void *data) {
    enum { COST_BYTES = 512 };
    const Trigger *trigger = data;
    size_t bytes = 0, counted = 0;
    if (trigger->cost_from && trigger->words.n > (size_t)trigger->cost_from)
        counted = trigger->words.n - (size_t)trigger->cost_from;
    for (size_t i = 0; i < trigger->words.n; i++) {
        size_t length;
        RedisModule_StringPtrLen(trigger->words.items[i], &length);
        bytes += length;
    }
    size_t cost = counted > bytes / COST_BYTES ? counted : bytes / COST_BYTES;
    return cost > UINT32_MAX ? UINT32_MAX : cost ? (uint32_t)cost : 1;
}

#define TRIGGER_METHODS                                                                                                \
    .kind = "trigger", .emit = emit_trigger, .finish = finish_trigger, .free = free_trigger,                           \
    .registration = trigger_registration
static const JobClass TRIGGER = {TRIGGER_METHODS, .of_user = 1};
static const JobClass TRIGGER_IN_ORDER = {TRIGGER_METHODS, .of_user = 1, .in_order = 1};
static const JobClass OWN_TRIGGER = {TRIGGER_METHODS, .cost = trigger_cost};

static Trigger *new_trigger(RedisModuleCtx *ctx, const Registration *registration, RedisModuleString **argv, int argc) {
    Trigger *trigger = RedisModule_Calloc(1, sizeof *trigger);
    trigger->registration = RedisModule_CreateStringFromString(NULL, registration->fields[REG_ID]);
    trigger->user = caller_name(ctx);
    trigger->cost_from = registration->cost_from;
    trigger->words = arg_list_of(argv, (ArgRange){0, argc});
    return trigger;
}

static int RG_TRIGGER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    Registration *registration = registry_find_trigger(argv[1]);
    if (!registration) return RedisModule_ReplyWithError(ctx, "ERR subcommand not found");
    if (caller_blocking_denied(ctx))
        return RedisModule_ReplyWithError(
            ctx, "ERR can not run a non-sync execution inside a MULTI/LUA (blocking is not allowed) or on loading.");
    if (caller_is_log(ctx)) return RedisModule_ReplyWithError(ctx, "ERR RG.TRIGGER is not accepted from a primary");
    const JobClass *class = registration->in_order ? &TRIGGER_IN_ORDER : registration->own ? &OWN_TRIGGER : &TRIGGER;
    Trigger *trigger = new_trigger(ctx, registration, argv + 1, argc - 1);
    if (jobs_submit_blocking(ctx, class, trigger, registration->timeout_ms)) registry_triggered(registration, 1);
    return REDISMODULE_OK;
}

/* RG.TRIGGERONKEY trigger key argument.. The key is also the first argument of the function. The server uses the key to
 * find the shard and to check the caller's rights. */
static int RG_TRIGGERONKEY_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    return argc < 3 ? RedisModule_WrongArity(ctx) : RG_TRIGGER_RedisCommand(ctx, argv, argc);
}

int trigger_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.trigger", RG_TRIGGER_RedisCommand, "write deny-oom", 0, 0, 0, "write slow"},
        {"rg.triggeronkey", RG_TRIGGERONKEY_RedisCommand, "write deny-oom", 2, 2, 1, "write slow"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

/* RG.UNREGISTER, RG.PAUSEREGISTRATIONS, RG.UNPAUSEREGISTRATIONS, RG.CLEARREGISTRATIONSSTATS. A command changes this
 * shard at once. The shard's replicas get the change by replication, and other shards by a message on the cluster bus.
 * A primary applies a message in a timer, where it may write and replicate. The worker gets a notice of each removal
 * and pause.
 *
 * Messages can be lost, and changes can arrive in any order. So a removal leaves a tombstone, and each order to pause
 * or to resume has a number; the order with the greatest number is valid. The workers compare the registrations of
 * their shards. If a shard has missed a change, its worker sends QA.UNREGISTER or QA.PAUSE. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "functions/registry.h"
#include "functions/registry_stats.h"
#include "functions/tombstones.h"
#include "jobs/jobs.h"
#include "server/bus.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/links.h"
#include "server/server.h"

enum { PAUSED_RETRY_MS = 100 };

/* The first letter of a message on the cluster bus. The id of the registration follows. For ORDER, the number of the
 * order and a space come before the id. */
typedef enum { UNREGISTER = 'U', ABORT = 'A', ORDER = 'O', CLEAR = 'C' } Verb;

/* ---- Notices ---- */

typedef struct Notice {
    RedisModuleString *id;
    int on; /* for an unregistration, 1 means that pending executions are aborted; for an order, 1 means pause and 0
             * means resume */
} Notice;

static int emit_notice(RedisModuleCtx *ctx, void *data) {
    const Notice *notice = data;
    RedisModule_ReplyWithString(ctx, notice->id);
    RedisModule_ReplyWithLongLong(ctx, notice->on);
    return 2;
}

static void free_notice(void *data) {
    RedisModule_FreeString(NULL, ((Notice *)data)->id);
    RedisModule_Free(data);
}

static const JobClass UNREGISTERED = {.kind = "unregister", .emit = emit_notice, .free = free_notice};
static const JobClass PAUSED = {.kind = "pause", .emit = emit_notice, .free = free_notice, .before_ready = 1};

static void notify(const JobClass *class, RedisModuleString *id, int on) {
    Notice *notice = RedisModule_Alloc(sizeof *notice);
    notice->id = RedisModule_CreateStringFromString(NULL, id);
    notice->on = on;
    jobs_notify(class, notice);
}

/* ---- Applying ---- */

static void set_paused(Registration *registration, int paused) {
    registration->paused = paused;
    registration->status = STREAM_OK; /* valid until the worker reports the next status */
    notify(&PAUSED, registration->fields[REG_ID], paused);
}

/* Returns the number of a new order: odd if `paused` is 1 (pause), even if it is 0 (resume). The number is greater than
 * the last number on this shard, and usually greater than the numbers on other shards. It is at most the maximum that
 * other shards and files accept. */
static long long next_order(const Registration *registration, int paused) {
    long long now = RedisModule_Milliseconds(), after = (registration->pause_order >> 1) + 1;
    long long order = (now > after ? now : after) << 1 | paused;
    return order <= MAX_PAUSE_ORDER ? order : MAX_PAUSE_ORDER - !!paused;
}

/* Applies an order to pause or to resume. 0: there is no such registration, it is not a StreamReader, or it already has
 * this order or a later order. */
static int apply_order(RedisModuleString *id, long long order) {
    Registration *registration = registry_find(id);
    if (!registration || registration->source != SOURCE_STREAM || order <= registration->pause_order) return 0;
    registration->pause_order = order;
    registry_changed();
    set_paused(registration, order & 1);
    return 1;
}

typedef enum { NOTHING, BURIED, REMOVED } Removal;

/* Removes a registration and adds its tombstone. `abort` 1: the function also ends the queued jobs of the registration.
 * The end of a job may write keys, so `ctx` must be a context that may write keys. A notice tells the worker to end the
 * jobs of the registration that it has, but whose execution has not started. All other jobs continue. REMOVED: the
 * registration was removed. BURIED: this shard does not have the registration, but the tombstone is new. NOTHING: there
 * was no registration, and the tombstone was already there. */
static Removal unregister(RedisModuleCtx *ctx, RedisModuleString *id, int abort) {
    RedisModuleString *kept = RedisModule_CreateStringFromString(NULL, id);
    int removed = registry_remove(id), buried = tombstones_add(kept);
    if (removed) notify(&UNREGISTERED, kept, abort);
    if (removed && abort)
        jobs_abort_queued(ctx, kept, "ERR execution was aborted: its registration was removed with ABORTPENDING");
    RedisModule_FreeString(NULL, kept);
    return removed ? REMOVED : buried ? BURIED : NOTHING;
}

/* ---- The cluster bus ---- */

static void broadcast(RedisModuleCtx *ctx, Verb verb, RedisModuleString *id, long long order) {
    if (!(RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_CLUSTER) || caller_is_log(ctx)) return;
    enum { NUMBER = 24 };
    size_t length = 0;
    const char *text = id ? RedisModule_StringPtrLen(id, &length) : "";
    char *payload = RedisModule_Alloc(1 + NUMBER + length);
    *payload = (char)verb;
    size_t size = 1;
    if (verb == ORDER) size += (size_t)snprintf(payload + 1, NUMBER, "%lld ", order);
    memcpy(payload + size, text, length);
    const char *fault = bus_send(ctx, NULL, CLUSTER_ADMIN, payload, size + length);
    if (fault) RedisModule_Log(ctx, "warning", "cannot send a change of registrations to the other shards: %s", fault);
    RedisModule_Free(payload);
}

typedef struct Change {
    Verb verb;
    RedisModuleString *id;
    long long order;
} Change;

static void apply(RedisModuleCtx *ctx, const Change *change) {
    switch (change->verb) {
    case CLEAR: registry_clear_stats(); return; /* replicas count nothing */
    case ORDER:
        if (apply_order(change->id, change->order))
            RedisModule_Replicate(ctx, "QA.PAUSE", "sl", change->id, change->order);
        return;
    case ABORT:
    case UNREGISTER:
        if (unregister(ctx, change->id, change->verb == ABORT) != NOTHING)
            RedisModule_Replicate(ctx, "QA.UNREGISTER", "s", change->id);
    }
}

static void on_change_timer(RedisModuleCtx *ctx, void *data) {
    Change *change = data;
    if (RedisModule_AvoidReplicaTraffic()) {
        RedisModule_CreateTimer(ctx, PAUSED_RETRY_MS, on_change_timer, change);
        return;
    }
    /* After a failover this server may be a replica. A replica must not apply the change. */
    if (server_is_active_primary(ctx)) apply(ctx, change);
    RedisModule_FreeString(NULL, change->id);
    RedisModule_Free(change);
}

static int is_order(long long order) { return order > 0 && order <= MAX_PAUSE_ORDER; }

/* Reads a change from the `length` bytes at `text`, which follow the first letter of a message. `verb` of the change is
 * already set. Returns 1, or 0 if the bytes are not a change. */
static int parse_change(Change *change, const char *text, size_t length) {
    change->order = 0;
    if (change->verb == ORDER) {
        const char *space = memchr(text, ' ', length);
        if (!space) return 0;
        RedisModuleString *number = RedisModule_CreateString(NULL, text, (size_t)(space - text));
        int good = RedisModule_StringToLongLong(number, &change->order) == REDISMODULE_OK && is_order(change->order);
        RedisModule_FreeString(NULL, number);
        if (!good) return 0;
        length -= (size_t)(space + 1 - text);
        text = space + 1;
    }
    change->id = RedisModule_CreateString(NULL, text, length);
    return 1;
}

/* Handles a message from another shard, where a client has called a command of this file. Replicas get the change from
 * their primary. Replication needs the context of a command or a timer, so a timer applies the change. A server that
 * replicates during a pause of writes (CLIENT PAUSE, a failover) aborts. So during a pause the timer tries again
 * later. */
static void on_cluster_message(RedisModuleCtx *ctx, const char *sender, const char *payload, size_t length) {
    static const char VERBS[] = {UNREGISTER, ABORT, ORDER, CLEAR};
    if (!length || !memchr(VERBS, *payload, sizeof VERBS) || !server_is_active_primary(ctx)) return;
    Change *change = RedisModule_Alloc(sizeof *change);
    change->verb = (Verb)*payload;
    if (parse_change(change, payload + 1, length - 1)) RedisModule_CreateTimer(ctx, 0, on_change_timer, change);
    else RedisModule_Free(change);
}

/* ---- The commands ---- */

static int RG_UNREGISTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2 && argc != 3) return RedisModule_WrongArity(ctx);
    if (!caller_is_log(ctx) && !caller_require_admin(ctx, "rg.unregister")) return REDISMODULE_OK;
    if (argc == 3 && strcasecmp(RedisModule_StringPtrLen(argv[2], NULL), "abortpending"))
        return RedisModule_ReplyWithError(ctx, "ERR unknown argument of RG.UNREGISTER, expected ABORTPENDING");
    Verb verb = argc == 3 ? ABORT : UNREGISTER;
    /* Replication and the AOF need the tombstone even if the registration does not exist. */
    if (!caller_is_log(ctx) && !registry_find(argv[1]))
        return RedisModule_ReplyWithError(ctx, "execution is not registered");
    unregister(ctx, argv[1], verb == ABORT);
    RedisModule_ReplicateVerbatim(ctx);
    broadcast(ctx, verb, argv[1], 0);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int RG_PAUSEREGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    const char *name = RedisModule_StringPtrLen(argv[0], NULL);
    int paused = !strcasecmp(name, "rg.pauseregistrations");
    if (!caller_require_admin(ctx, name)) return REDISMODULE_OK;
    for (int i = 1; i < argc; i++) {
        const Registration *registration = registry_find(argv[i]);
        if (!registration) return RedisModule_ReplyWithError(ctx, "execution is not registered");
        if (registration->source == SOURCE_STREAM) continue;
        char error[96];
        snprintf(error, sizeof error, "Reader %.32s does not support pause",
                 RedisModule_StringPtrLen(registration->fields[REG_SOURCE], NULL));
        return RedisModule_ReplyWithError(ctx, error);
    }
    for (int i = 1; i < argc; i++) {
        Registration *registration = registry_find(argv[i]);
        long long order = next_order(registration, paused);
        apply_order(argv[i], order);
        RedisModule_Replicate(ctx, "QA.PAUSE", "sl", argv[i], order);
        broadcast(ctx, ORDER, argv[i], order);
    }
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int RG_CLEARREGISTRATIONSSTATS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 1) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.clearregistrationsstats")) return REDISMODULE_OK;
    registry_clear_stats();
    broadcast(ctx, CLEAR, NULL, 0);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- Changes that this shard has missed: QA.UNREGISTER, QA.PAUSE ---- */

static int QA_UNREGISTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!caller_is_log(ctx) && !link_require(ctx, "QA.UNREGISTER")) return REDISMODULE_OK;
    if (argc < 2) return RedisModule_WrongArity(ctx);
    int changed = 0;
    for (int i = 1; i < argc; i++) changed |= unregister(ctx, argv[i], 0) != NOTHING;
    if (changed) RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int QA_PAUSE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!caller_is_log(ctx) && !link_require(ctx, "QA.PAUSE")) return REDISMODULE_OK;
    if (argc < 3 || argc % 2 == 0) return RedisModule_WrongArity(ctx);
    long long order;
    for (int i = 2; i < argc; i += 2)
        if (RedisModule_StringToLongLong(argv[i], &order) != REDISMODULE_OK || !is_order(order))
            return RedisModule_ReplyWithError(ctx, "ERR number of an order is out of range");
    int changed = 0;
    for (int i = 1; i < argc; i += 2) {
        RedisModule_StringToLongLong(argv[i + 1], &order);
        changed |= apply_order(argv[i], order);
    }
    if (changed) RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int registry_admin_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.unregister", RG_UNREGISTER_RedisCommand, "admin write", 0, 0, 0, "admin dangerous write slow"},
        {"rg.pauseregistrations", RG_PAUSEREGISTRATIONS_RedisCommand, "admin write", 0, 0, 0,
         "admin dangerous write slow"},
        {"rg.unpauseregistrations", RG_PAUSEREGISTRATIONS_RedisCommand, "admin write", 0, 0, 0,
         "admin dangerous write slow"},
        {"rg.clearregistrationsstats", RG_CLEARREGISTRATIONSSTATS_RedisCommand, "admin", 0, 0, 0,
         "admin dangerous slow"},
        {"qa.unregister", QA_UNREGISTER_RedisCommand, LINK_COMMAND_FLAGS " write", 0, 0, 0, "admin dangerous write"},
        {"qa.pause", QA_PAUSE_RedisCommand, LINK_COMMAND_FLAGS " write", 0, 0, 0, "admin dangerous write"},
    };
    bus_receive(ctx, CLUSTER_ADMIN, on_cluster_message);
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

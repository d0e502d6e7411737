/* Changes of single registrations. A command changes this shard at once, its replicas by replication, and the other
 * shards by a message on the cluster bus: one letter and the registration's id. A message is applied in a timer, where
 * writing and replicating are allowed, and never by a replica. The worker gets a notice of a removal and of a pause. */
#include "functions/registry_admin.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "functions/registry.h"
#include "functions/registry_stats.h"
#include "jobs/jobs.h"
#include "server/caller.h"
#include "server/server.h"

enum { PAUSED_RETRY_MS = 100 };

/* A change as the cluster bus carries it: this letter, then the registration's id. */
typedef enum { UNREGISTER = 'U', ABORT = 'A', PAUSE = 'P', RESUME = 'R', CLEAR = 'C' } Verb;

/* ---- Notices ---- */

typedef struct Notice {
    RedisModuleString *id;
    int paused;
} Notice;

static int emit_unregister(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithString(ctx, ((Notice *)data)->id);
    return 1;
}

static int emit_pause(RedisModuleCtx *ctx, void *data) {
    const Notice *notice = data;
    RedisModule_ReplyWithString(ctx, notice->id);
    RedisModule_ReplyWithLongLong(ctx, notice->paused);
    return 2;
}

static void free_notice(void *data) {
    RedisModule_FreeString(NULL, ((Notice *)data)->id);
    RedisModule_Free(data);
}

static const JobClass UNREGISTERED = {.kind = "unregister", .emit = emit_unregister, .free = free_notice};
static const JobClass PAUSED = {.kind = "pause", .emit = emit_pause, .free = free_notice, .before_ready = 1};

static void notify(const JobClass *class, RedisModuleString *id, int paused) {
    Notice *notice = RedisModule_Alloc(sizeof *notice);
    notice->id = RedisModule_CreateStringFromString(NULL, id);
    notice->paused = paused;
    jobs_notify(class, notice);
}

/* ---- Applying ---- */

static int set_paused(RedisModuleString *id, int paused) {
    Registration *registration = registry_find(id);
    if (!registration || registration->reader != READER_STREAM) return 0;
    registration->paused = paused;
    registration->status = STREAM_OK; /* what it says next will tell */
    notify(&PAUSED, id, paused);
    return 1;
}

/* In a context that may write keys, for jobs are ended. 0: there is no such registration. */
static int apply(RedisModuleCtx *ctx, Verb verb, RedisModuleString *id) {
    switch (verb) {
    case PAUSE: return set_paused(id, 1);
    case RESUME: return set_paused(id, 0);
    case CLEAR: registry_clear_stats(); return 1;
    case ABORT:
    case UNREGISTER: break;
    }
    RedisModuleString *kept = RedisModule_CreateStringFromString(NULL, id);
    int removed = registry_remove(id);
    if (removed) notify(&UNREGISTERED, kept, 0);
    if (removed && verb == ABORT)
        jobs_abort(ctx, kept, "ERR execution was aborted: its registration was removed with ABORTPENDING");
    RedisModule_FreeString(NULL, kept);
    return removed;
}

/* ---- The cluster bus ---- */

static void broadcast(RedisModuleCtx *ctx, Verb verb, RedisModuleString *id) {
    if (!(RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_CLUSTER) || caller_is_log(ctx)) return;
    size_t length = 0;
    const char *text = id ? RedisModule_StringPtrLen(id, &length) : "";
    char *payload = RedisModule_Alloc(length + 1);
    *payload = (char)verb;
    memcpy(payload + 1, text, length);
    RedisModule_SendClusterMessage(ctx, NULL, CLUSTER_ADMIN, payload, (uint32_t)length + 1);
    RedisModule_Free(payload);
}

typedef struct Change {
    Verb verb;
    RedisModuleString *id;
} Change;

static void on_change_timer(RedisModuleCtx *ctx, void *data) {
    Change *change = data;
    if (RedisModule_AvoidReplicaTraffic()) {
        RedisModule_CreateTimer(ctx, PAUSED_RETRY_MS, on_change_timer, change);
        return;
    }
    /* A pause may have been for a failover: a replica changes nothing of its own accord. */
    if (server_is_active_primary(ctx) && apply(ctx, change->verb, change->id)) {
        const char *command = change->verb == PAUSE    ? "RG.PAUSEREGISTRATIONS"
                              : change->verb == RESUME ? "RG.UNPAUSEREGISTRATIONS"
                              : change->verb == CLEAR  ? NULL /* replicas count nothing */
                                                       : "RG.UNREGISTER";
        if (command) RedisModule_Replicate(ctx, command, "s", change->id);
    }
    RedisModule_FreeString(NULL, change->id);
    RedisModule_Free(change);
}

/* One of these commands ran on another shard. Replicas get it from their primary. Replicating needs a command or
 * timer context, hence the timer; and a server that replicates while writes are paused (CLIENT PAUSE, a failover) ends
 * itself. */
static void on_cluster_message(RedisModuleCtx *ctx, const char *sender, uint8_t type, const unsigned char *payload,
                               uint32_t length) {
    static const char VERBS[] = {UNREGISTER, ABORT, PAUSE, RESUME, CLEAR};
    (void)sender;
    (void)type;
    if (!length || !memchr(VERBS, *payload, sizeof VERBS) || !server_is_active_primary(ctx)) return;
    Change *change = RedisModule_Alloc(sizeof *change);
    change->verb = (Verb)*payload;
    change->id = RedisModule_CreateString(NULL, (const char *)payload + 1, length - 1);
    RedisModule_CreateTimer(ctx, 0, on_change_timer, change);
}

/* ---- The commands ---- */

int RG_UNREGISTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2 && argc != 3) return RedisModule_WrongArity(ctx);
    if (!caller_is_log(ctx) && !caller_require_admin(ctx, "rg.unregister")) return REDISMODULE_OK;
    if (argc == 3 && strcasecmp(RedisModule_StringPtrLen(argv[2], NULL), "abortpending"))
        return RedisModule_ReplyWithError(ctx, "ERR unknown argument of RG.UNREGISTER, expected ABORTPENDING");
    Verb verb = argc == 3 ? ABORT : UNREGISTER;
    if (!apply(ctx, verb, argv[1])) return RedisModule_ReplyWithError(ctx, "execution is not registered");
    RedisModule_ReplicateVerbatim(ctx);
    broadcast(ctx, verb, argv[1]);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int RG_PAUSEREGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    const char *name = RedisModule_StringPtrLen(argv[0], NULL);
    Verb verb = strcasecmp(name, "rg.pauseregistrations") ? RESUME : PAUSE;
    if (!caller_is_log(ctx) && !caller_require_admin(ctx, name)) return REDISMODULE_OK;
    for (int i = 1; i < argc; i++) {
        const Registration *registration = registry_find(argv[i]);
        if (!registration) return RedisModule_ReplyWithError(ctx, "execution is not registered");
        if (registration->reader == READER_STREAM) continue;
        char error[96];
        snprintf(error, sizeof error, "Reader %.32s does not support pause",
                 RedisModule_StringPtrLen(registration->fields[REG_READER], NULL));
        return RedisModule_ReplyWithError(ctx, error);
    }
    for (int i = 1; i < argc; i++) {
        apply(ctx, verb, argv[i]);
        broadcast(ctx, verb, argv[i]);
    }
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int RG_CLEARREGISTRATIONSSTATS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.clearregistrationsstats")) return REDISMODULE_OK;
    apply(ctx, CLEAR, NULL);
    broadcast(ctx, CLEAR, NULL);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int registry_admin_on_load(RedisModuleCtx *ctx) {
    RedisModule_RegisterClusterMessageReceiver(ctx, CLUSTER_ADMIN, on_cluster_message);
    return REDISMODULE_OK;
}

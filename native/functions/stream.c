/* Additions to streams become notices to the worker, which reads the streams itself. One notice says as much as many,
 * so the module drops an addition while a notice for the same registration and key waits. */
#include "functions/stream.h"

#include <string.h>

#include "functions/registry.h"
#include "functions/registry_stats.h"
#include "jobs/jobs.h"
#include "server/server.h"

/* A stream notice in the queue. */
typedef struct Addition {
    RedisModuleString *id, *key;
    size_t length;
    char name[]; /* key in `waiting`: the length of `id`, then `id` and `key` */
} Addition;

static RedisModuleDict *waiting;

static int emit_addition(RedisModuleCtx *ctx, void *data) {
    const Addition *addition = data;
    RedisModule_ReplyWithString(ctx, addition->id);
    RedisModule_ReplyWithString(ctx, addition->key);
    return 2;
}

/* The notice was handed out or dropped: the next addition needs a new one. */
static void free_addition(void *data) {
    Addition *addition = data;
    RedisModule_DictDelC(waiting, addition->name, addition->length, NULL);
    RedisModule_FreeString(NULL, addition->id);
    RedisModule_FreeString(NULL, addition->key);
    RedisModule_Free(addition);
}

static const JobClass STREAM = {.kind = "stream", .emit = emit_addition, .free = free_addition, .with_events = 1};

static Addition *new_addition(RedisModuleString *id, RedisModuleString *key) {
    size_t id_length, key_length;
    const char *id_text = RedisModule_StringPtrLen(id, &id_length),
               *key_text = RedisModule_StringPtrLen(key, &key_length);
    size_t length = sizeof id_length + id_length + key_length;
    Addition *addition = RedisModule_Alloc(sizeof *addition + length);
    addition->length = length;
    memcpy(addition->name, &id_length, sizeof id_length);
    memcpy(addition->name + sizeof id_length, id_text, id_length);
    memcpy(addition->name + sizeof id_length + id_length, key_text, key_length);
    return addition;
}

static void announce(Registration *registration, RedisModuleString *key) {
    Addition *addition = new_addition(registration->fields[REG_ID], key);
    if (RedisModule_DictSetC(waiting, addition->name, addition->length, addition) != REDISMODULE_OK) {
        RedisModule_Free(addition); /* one waits already */
        return;
    }
    addition->id = RedisModule_CreateStringFromString(NULL, registration->fields[REG_ID]);
    addition->key = RedisModule_CreateStringFromString(NULL, key);
    if (!jobs_notify(&STREAM, addition)) registry_overflowed(registration);
}

static int on_stream(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    (void)type;
    if (!registry_streams() || strcmp(event, "xadd")) return REDISMODULE_OK;
    if (RedisModule_GetSelectedDb(ctx) != 0 || !server_is_active_primary(ctx)) return REDISMODULE_OK;
    if (server_is_importing(ctx)) return REDISMODULE_OK; /* the shard that the entries come from has acted on them */
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    for (Registration *at = registry_first(); at; at = at->next)
        if (at->source == SOURCE_STREAM && registration_matches_key(at, text, length)) announce(at, key);
    return REDISMODULE_OK;
}

static const JobClass PROMOTED = {.kind = "promoted"};

static void on_role(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    (void)ctx;
    (void)event;
    (void)data;
    if (subevent == REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER) jobs_notify(&PROMOTED, NULL);
}

int stream_on_load(RedisModuleCtx *ctx) {
    waiting = RedisModule_CreateDict(NULL);
    RedisModuleEvent role = {REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, 1};
    if (RedisModule_SubscribeToServerEvent(ctx, role, on_role) != REDISMODULE_OK) return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_STREAM, on_stream);
}

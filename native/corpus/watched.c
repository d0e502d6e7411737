/* watched.h explains the table of keys with watched questions. */
#include "corpus/watched.h"

#include <string.h>

#include "corpus/index_type.h"
#include "server/config.h"
#include "server/server.h"

static const char PREFIX[] = "watched:";

/* A step of the timer does at most about UNITS units of work. A unit takes at most about 20 ns (index.h), so a step
 * takes at most about 1 ms. The next step follows after WORK_EVERY_MS. LOOK_MS is the shortest time between two
 * searches for expired questions (make_room). */
enum { LOOK_MS = 1000, UNITS = 50000, WORK_EVERY_MS = 5 };

static RedisModuleDict *keys; /* name of an index key -> Watched */
static WatchedTotals totals;
static uint64_t last_token;

/* ---- Dropped questions ---- */

/* Reports a dropped question to the clients (watched.h). If `name` is NULL, any question of the key may have been
 * dropped. */
static void tell(void *context, const void *name, size_t length, size_t count) {
    const Watched *watched = context;
    size_t key_length;
    const char *key = RedisModule_StringPtrLen(watched->key, &key_length);
    RedisModuleString *changed = RedisModule_CreateString(watched->ctx, PREFIX, sizeof PREFIX - 1);
    RedisModule_StringAppendBuffer(watched->ctx, changed, key, key_length);
    RedisModule_StringAppendBuffer(watched->ctx, changed, ":", 1);
    if (name) RedisModule_StringAppendBuffer(watched->ctx, changed, name, length);
    RedisModule_SignalModifiedKey(watched->ctx, changed);
    RedisModule_FreeString(watched->ctx, changed);
    totals.dropped += count;
}

/* ---- The table ---- */

static Watched *find(RedisModuleString *key) {
    size_t length;
    const char *name = RedisModule_StringPtrLen(key, &length);
    return RedisModule_DictSize(keys) ? RedisModule_DictGetC(keys, (void *)name, length, NULL) : NULL;
}

static Watched *find_or_new(RedisModuleString *key) {
    Watched *watched = find(key);
    if (watched) return watched;
    size_t length;
    const char *name = RedisModule_StringPtrLen(key, &length);
    watched = RedisModule_Calloc(1, sizeof *watched);
    watched->watch = index_watch_new(stored_index_allocator(), stored_index_hash_key(), tell);
    RedisModule_DictSetC(keys, (void *)name, length, watched);
    return watched;
}

static void begin(Watched *watched, RedisModuleCtx *ctx, RedisModuleString *key) {
    watched->ctx = ctx;
    watched->key = key;
    watched->before = index_watch_count(watched->watch);
}

static bool has_work(const Watched *watched) {
    return index_watch_in_review(watched->watch) || index_watch_has_left(watched->watch);
}

static void schedule_work(void);

static void end(Watched *watched) {
    size_t length;
    const char *name = RedisModule_StringPtrLen(watched->key, &length);
    totals.questions += index_watch_count(watched->watch) - watched->before;
    if (has_work(watched)) schedule_work();
    if (index_watch_count(watched->watch) || index_watch_has_left(watched->watch)) return;
    RedisModule_DictDelC(keys, (void *)name, length, NULL);
    index_watch_free(watched->watch);
    RedisModule_Free(watched);
}

Watched *watched_begin(RedisModuleCtx *ctx, RedisModuleString *key) {
    Watched *watched = RedisModule_GetSelectedDb(ctx) == 0 ? find(key) : NULL;
    if (watched) begin(watched, ctx, key);
    return watched;
}

void watched_end(Watched *watched, Index *index) {
    if (!watched) return;
    index_watch_settle(watched->watch, index, watched);
    end(watched);
}

static void drop_all(RedisModuleCtx *ctx, RedisModuleString *key) {
    Watched *watched = find(key);
    if (!watched) return;
    begin(watched, ctx, key);
    index_watch_clear(watched->watch, watched);
    end(watched);
}

/* ---- Work in steps ---- */

/* Returns a key with questions to review or with memory to free. Returns NULL if no key has such work. */
static RedisModuleString *next_with_work(RedisModuleCtx *ctx) {
    RedisModuleString *key = NULL;
    Watched *watched;
    size_t length;
    const char *name;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(keys, "^", NULL, 0);
    while (!key && (name = RedisModule_DictNextC(iterator, &length, (void **)&watched)))
        if (has_work(watched)) key = RedisModule_CreateString(ctx, name, length);
    RedisModule_DictIteratorStop(iterator);
    return key;
}

/* Continues the review of the key's questions (index_watch_review()). If the key has expired, index_key_peek deletes
 * the key, and the deletion drops all questions of the key. */
static void review(RedisModuleCtx *ctx, RedisModuleString *key) {
    Watched *watched = find(key);
    if (!index_watch_in_review(watched->watch)) return;
    StoredIndex *stored;
    const char *error = index_key_peek(ctx, key, &stored);
    watched = find(key);
    if (error || !stored || !stored->index) {
        drop_all(ctx, key);
    } else if (watched) {
        begin(watched, ctx, key);
        index_watch_review(watched->watch, stored->index, UNITS, watched);
        end(watched);
    }
}

static void free_left(RedisModuleCtx *ctx, RedisModuleString *key) {
    Watched *watched = find(key);
    if (!watched) return;
    begin(watched, ctx, key);
    index_watch_free_left(watched->watch, UNITS);
    end(watched);
}

static bool working;

static void work(RedisModuleCtx *ctx, void *data) {
    (void)data;
    working = false;
    RedisModuleString *key = next_with_work(ctx);
    if (!key) return;
    review(ctx, key);
    free_left(ctx, key);
    RedisModule_FreeString(ctx, key);
    schedule_work();
}

static void schedule_work(void) {
    if (working) return;
    working = true;
    RedisModule_CreateTimer(server_ctx(), WORK_EVERY_MS, work, NULL);
}

/* ---- Questions ---- */

WatchedTotals watched_totals(void) {
    WatchedTotals now = totals;
    Watched *watched;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(keys, "^", NULL, 0);
    while (RedisModule_DictNextC(iterator, NULL, (void **)&watched)) now.bytes += index_watch_memory(watched->watch);
    RedisModule_DictIteratorStop(iterator);
    return now;
}

/* If the limit of questions is reached, removes the expired questions of all keys. Searches for expired questions at
 * most once a second. */
static void make_room(void) {
    static long long looked_at;
    long long now = RedisModule_Milliseconds();
    if (totals.questions < (uint64_t)config.max_watched || now < looked_at + LOOK_MS) return;
    looked_at = now;
    Watched *watched;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(keys, "^", NULL, 0);
    while (RedisModule_DictNextC(iterator, NULL, (void **)&watched)) {
        totals.questions -= index_watch_count(watched->watch);
        index_watch_expire(watched->watch, now);
        totals.questions += index_watch_count(watched->watch);
    }
    RedisModule_DictIteratorStop(iterator);
    schedule_work();
}

uint64_t watched_add(RedisModuleCtx *ctx, RedisModuleString *key, Index *index, IndexWatched *question) {
    make_room();
    Watched *watched = find_or_new(key);
    begin(watched, ctx, key);
    uint64_t others = totals.questions - watched->before, limit = (uint64_t)config.max_watched;
    question->token = ++last_token;
    bool stands = others < limit && index_watch_add(watched->watch, index, question, (size_t)(limit - others),
                                                    RedisModule_Milliseconds(), watched);
    end(watched);
    return stands ? question->token : 0;
}

uint64_t watched_token(RedisModuleString *key, const void *name, size_t length) {
    const Watched *watched = find(key);
    return watched ? index_watch_token(watched->watch, name, length, RedisModule_Milliseconds()) : 0;
}

/* ---- Events of keys and of the server ---- */

static int on_key(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    (void)type;
    if (!RedisModule_DictSize(keys) || RedisModule_GetSelectedDb(ctx) != 0) return REDISMODULE_OK;
    if (!strcmp(event, "qa.index.put") || !strcmp(event, "qa.index.del") || !strcmp(event, "qa.index.begin") ||
        !strcmp(event, "qa.index.embed") || !strcmp(event, "qa.index.change"))
        return REDISMODULE_OK;
    drop_all(ctx, key);
    return REDISMODULE_OK;
}

/* Drops all questions of all keys. A key may stay in the table until the timer has freed the memory of its questions.
 */
static void drop_everything(RedisModuleCtx *ctx) {
    RedisModuleString *key = RedisModule_CreateString(ctx, "", 0);
    for (bool first = true;; first = false) {
        size_t length;
        const char *name = RedisModule_StringPtrLen(key, &length);
        RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(keys, first ? "^" : ">", (void *)name, length);
        name = RedisModule_DictNextC(iterator, &length, NULL);
        RedisModuleString *next = name ? RedisModule_CreateString(ctx, name, length) : NULL;
        RedisModule_DictIteratorStop(iterator);
        RedisModule_FreeString(ctx, key);
        if (!next) return;
        key = next;
        drop_all(ctx, key);
    }
}

static void on_flush(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    (void)event;
    const RedisModuleFlushInfo *flushed = data;
    if (subevent == REDISMODULE_SUBEVENT_FLUSHDB_START && flushed->dbnum <= 0) drop_everything(ctx);
}

static void on_swap(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    (void)event;
    (void)subevent;
    (void)data;
    drop_everything(ctx);
}

int watched_on_load(RedisModuleCtx *ctx) {
    keys = RedisModule_CreateDict(NULL);
    RedisModule_GetRandomBytes((unsigned char *)&last_token, sizeof last_token);
    last_token &= (UINT64_C(1) << 52) - 1; /* below 2^53, so that parsers of JSON read it exactly */
    RedisModuleEvent flush = {REDISMODULE_EVENT_FLUSHDB, 1}, swap = {REDISMODULE_EVENT_SWAPDB, 1};
    if (RedisModule_SubscribeToServerEvent(ctx, flush, on_flush) != REDISMODULE_OK ||
        RedisModule_SubscribeToServerEvent(ctx, swap, on_swap) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_ALL, on_key);
}

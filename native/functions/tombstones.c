/* A ring buffer contains the ids in the order of their arrival, and a dictionary finds them. */
#include "functions/tombstones.h"

#include "server/commands.h"
#include "server/links.h"

enum { IDS_PER_COMMAND = 1000 };

static RedisModuleDict *known;
static RedisModuleString *ring[MAX_TOMBSTONES];
static size_t first, count; /* the position of the oldest id in the ring, and the number of ids */

int tombstones_have(RedisModuleString *id) {
    int missing;
    RedisModule_DictGet(known, id, &missing);
    return !missing;
}

size_t tombstones_count(void) { return count; }

static RedisModuleString *at(size_t index) { return ring[(first + index) % MAX_TOMBSTONES]; }

static void drop_oldest(void) {
    RedisModule_DictDel(known, at(0), NULL);
    RedisModule_FreeString(NULL, at(0));
    first = (first + 1) % MAX_TOMBSTONES;
    count--;
}

int tombstones_add(RedisModuleString *id) {
    if (RedisModule_DictSet(known, id, NULL) != REDISMODULE_OK) return 0;
    if (count == MAX_TOMBSTONES) drop_oldest();
    ring[(first + count++) % MAX_TOMBSTONES] = RedisModule_CreateStringFromString(NULL, id);
    return 1;
}

void tombstones_clear(void) {
    while (count) drop_oldest();
}

/* ---- Persistence ---- */

void tombstones_save(RedisModuleIO *rdb) {
    RedisModule_SaveUnsigned(rdb, count);
    for (size_t i = 0; i < count; i++) RedisModule_SaveString(rdb, at(i));
}

int tombstones_load(RedisModuleIO *rdb) {
    uint64_t saved = RedisModule_LoadUnsigned(rdb);
    if (RedisModule_IsIOError(rdb) || saved > MAX_TOMBSTONES) return 0;
    for (uint64_t i = 0; i < saved; i++) {
        RedisModuleString *id = RedisModule_LoadString(rdb);
        int damaged = RedisModule_IsIOError(rdb) || !id;
        if (!damaged) tombstones_add(id);
        if (id) RedisModule_FreeString(NULL, id);
        if (damaged) return 0;
    }
    return 1;
}

void tombstones_replicate(RedisModuleCtx *ctx) {
    RedisModuleString *argv[IDS_PER_COMMAND];
    for (size_t done = 0; done < count;) {
        size_t length = 0;
        while (length < IDS_PER_COMMAND && done < count) argv[length++] = at(done++);
        RedisModule_Replicate(ctx, "QA.UNREGISTER", "v", argv, length);
    }
}

/* ---- QA.UNREGISTERED ---- */

static int QA_UNREGISTERED_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.UNREGISTERED")) return REDISMODULE_OK;
    if (argc < 2) return RedisModule_WrongArity(ctx);
    long found = 0;
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    for (int i = 1; i < argc; i++) {
        if (!tombstones_have(argv[i])) continue;
        RedisModule_ReplyWithString(ctx, argv[i]);
        found++;
    }
    RedisModule_ReplySetArrayLength(ctx, found);
    return REDISMODULE_OK;
}

int tombstones_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"qa.unregistered", QA_UNREGISTERED_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
    };
    known = RedisModule_CreateDict(NULL);
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

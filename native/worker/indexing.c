/* Implements QA.INDEXING, and counts the ends of workers in `failures:{tag}`. The names of the documents are only in
 * memory. So if the server and the worker end at the same time, no end is counted. While a slot is migrating, the
 * server may refuse the write of a count. Then the document may end one more worker. */
#include "worker/indexing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/commands.h"
#include "server/links.h"
#include "server/server.h"

enum { BATCHES = 8, MAX_DOCUMENTS = 256, MAX_LOGGED = 5, MAX_VALUE = 256 };

typedef struct Document {
    RedisModuleString *name, *tag;
} Document;

/* The documents on which one thread of the worker works. */
typedef struct Batch {
    Document *documents;
    int count;
} Batch;

static Batch batches[BATCHES];

static void clear(Batch *batch) {
    for (int i = 0; i < batch->count; i++) {
        RedisModule_FreeString(NULL, batch->documents[i].name);
        RedisModule_FreeString(NULL, batch->documents[i].tag);
    }
    RedisModule_Free(batch->documents);
    batch->documents = NULL;
    batch->count = 0;
}

/* QA.INDEXING batch [name tag]..: replaces the list of documents of this batch. */
static int QA_INDEXING_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long number;
    if (!link_require(ctx, "QA.INDEXING")) return REDISMODULE_OK;
    if (argc < 2 || argc % 2) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &number) != REDISMODULE_OK || number < 0 || number >= BATCHES)
        return RedisModule_ReplyWithError(ctx, "ERR batch must be an integer from 0 to 7");
    int count = (argc - 2) / 2;
    if (count > MAX_DOCUMENTS) return RedisModule_ReplyWithError(ctx, "ERR a batch has at most 256 documents");
    Batch *batch = &batches[number];
    clear(batch);
    if (count) batch->documents = RedisModule_Alloc((size_t)count * sizeof *batch->documents);
    for (int i = 0; i < count; i++) {
        batch->documents[i].name = RedisModule_HoldString(NULL, argv[2 + 2 * i]);
        batch->documents[i].tag = RedisModule_HoldString(NULL, argv[3 + 2 * i]);
    }
    batch->count = count;
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- The end of a worker ---- */

/* Returns how many workers have ended while they indexed the document: the count at the start of the stored value.
 * Returns 0 if there is no value, or if the value has no count: the document was marked as failed, and has been written
 * again since. */
static long long ends_before(RedisModuleCtx *ctx, RedisModuleString *key, RedisModuleString *name) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "HGET", "ss", key, name);
    long long count = 0;
    size_t length;
    const char *text = reply ? RedisModule_CallReplyStringPtr(reply, &length) : NULL;
    char digits[20] = "";
    if (text && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_STRING) {
        memcpy(digits, text, length < sizeof digits ? length : sizeof digits - 1);
        count = strtoll(digits, NULL, 10);
    }
    if (reply) RedisModule_FreeCallReply(reply);
    return count;
}

static void add_end(RedisModuleCtx *ctx, const Document *document, const char *reason) {
    char value[MAX_VALUE];
    RedisModuleString *key = RedisModule_CreateStringPrintf(NULL, "failures:{%s}",
                                                            RedisModule_StringPtrLen(document->tag, NULL));
    snprintf(value, sizeof value, "%lld %s", ends_before(ctx, key, document->name) + 1, reason);
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "HSET", "!ssc", key, document->name, value);
    if (reply) RedisModule_FreeCallReply(reply);
    RedisModule_FreeString(NULL, key);
}

void indexing_worker_lost(RedisModuleCtx *ctx, const char *reason, int innocent) {
    /* A server that replicates during a pause of writes (CLIENT PAUSE, a failover) aborts. So the end of a worker is
     * not counted during a pause. */
    int paused = RedisModule_AvoidReplicaTraffic();
    int total = 0, may_count = !innocent && !paused && server_is_active_primary(ctx);
    if (may_count) RedisModule_SelectDb(ctx, 0);
    for (int i = 0; i < BATCHES; i++) {
        for (int j = 0; may_count && j < batches[i].count; j++) {
            add_end(ctx, &batches[i].documents[j], reason);
            if (total++ < MAX_LOGGED)
                RedisModule_Log(ctx, "warning", "the worker ended while it indexed document %.200s",
                                RedisModule_StringPtrLen(batches[i].documents[j].name, NULL));
        }
        clear(&batches[i]);
    }
    if (total > MAX_LOGGED)
        RedisModule_Log(ctx, "warning", "the worker ended while it indexed %d more documents", total - MAX_LOGGED);
}

int indexing_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"qa.indexing", QA_INDEXING_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

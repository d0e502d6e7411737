/* QA.HELLO, QA.READY, QA.BEAT, QA.NEXT, QA.DONE and QA.SEND: the commands by which the worker registers with the
 * module, fetches jobs, returns results and sends messages to other workers (docs/worker-protocol.md, sections 2 and
 * 3).
 *
 * If there is no job, QA.NEXT blocks the link for the time that the worker gives. Links wait in the order of arrival. A
 * job leaves the queue only when QA_NEXT_Reply writes the reply, so no job is lost if the link closes earlier. The
 * module wakes one link at a time. When this link has its reply, the module wakes the next link if there is another
 * job. A Waiter is the state of a link that waits in QA.NEXT. It belongs to the blocked client of this link and exists
 * until QA_NEXT_Free. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "functions/registry_stats.h"
#include "jobs/cancelled.h"
#include "jobs/jobs.h"
#include "server/blake2b.h"
#include "server/bus.h"
#include "server/bus_keys.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/links.h"
#include "server/server.h"
#include "worker/beat.h"
#include "worker/supervisor.h"

enum { MAX_JOBS_PER_CALL = 1024, MAX_WAIT_MS = 60000, MAX_MESSAGE = 1 << 20 };
enum { MAX_QUEUED_MESSAGE_BYTES = 64 << 20 };

typedef struct Waiter {
    RedisModuleBlockedClient *client;
    JobsCapacity capacity;
    RedisModuleTimerID timer;
    int woken; /* 1: QA_NEXT_Reply will write its reply soon */
    struct Waiter *next;
    struct Waiter *previous;
} Waiter;

static Waiter *waiters; /* oldest first */
static Waiter *last_waiter;

/* ---- QA.HELLO, QA.BEAT ---- */

/* Replies with a secret in hex. With this secret, the worker makes the digests in the names of cached answers
 * (qa.answer-keys). Only servers of this cluster have the secret. The reply is "" if the servers share no key. */
static void reply_secret(RedisModuleCtx *ctx) {
    uint8_t secret[BUS_KEY_BYTES];
    char text[2 * BUS_KEY_BYTES + 1] = "";
    if (bus_key_source() != KEY_SERVER && bus_secret(0, "qa-cluster names of answers", secret))
        hex_text(text, secret, sizeof secret);
    RedisModule_ReplyWithCString(ctx, "secret");
    RedisModule_ReplyWithCString(ctx, text);
}

static int QA_HELLO_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3) return RedisModule_WrongArity(ctx);
    size_t length;
    long long version;
    if (RedisModule_StringToLongLong(argv[1], &version) != REDISMODULE_OK || version != WORKER_PROTOCOL) {
        char error[128];
        snprintf(error, sizeof error, "PROTOCOL worker speaks version %.32s, module speaks %d",
                 RedisModule_StringPtrLen(argv[1], NULL), WORKER_PROTOCOL);
        return RedisModule_ReplyWithError(ctx, error);
    }
    const char *token = RedisModule_StringPtrLen(argv[2], &length);
    if (!supervisor_check_token(token, length)) return RedisModule_ReplyWithError(ctx, "NOPERM wrong worker token");
    if (!link_add(ctx)) return RedisModule_ReplyWithError(ctx, "NOPERM this client cannot become a link");
    supervisor_hello();
    const char *shard = RedisModule_GetMyClusterID();
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    RedisModule_ReplyWithCString(ctx, "worker");
    RedisModule_ReplyWithLongLong(ctx, supervisor_info()->number);
    RedisModule_ReplyWithCString(ctx, "shard_id");
    if (shard) RedisModule_ReplyWithStringBuffer(ctx, shard, REDISMODULE_NODE_ID_LEN);
    else RedisModule_ReplyWithCString(ctx, "0000000000000000000000000000000000000000");
    RedisModule_ReplyWithCString(ctx, "cluster");
    RedisModule_ReplyWithLongLong(ctx, (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_CLUSTER) != 0);
    reply_secret(ctx);
    RedisModule_ReplySetArrayLength(ctx, 8 + config_reply_pairs(ctx));
    return REDISMODULE_OK;
}

static int QA_BEAT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.BEAT")) return REDISMODULE_OK;
    if (argc < 3 || argc % 2 == 0) return RedisModule_WrongArity(ctx);
    char error[192];
    if (!beat_read(argv + 1, argc - 1, error, sizeof error)) return RedisModule_ReplyWithError(ctx, error);
    supervisor_beat();
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- QA.NEXT ---- */

static void add_waiter(Waiter *waiter) {
    waiter->previous = last_waiter;
    if (last_waiter) last_waiter->next = waiter;
    else waiters = waiter;
    last_waiter = waiter;
}

static void remove_waiter(Waiter *waiter) {
    if (waiter->previous) waiter->previous->next = waiter->next;
    else waiters = waiter->next;
    if (waiter->next) waiter->next->previous = waiter->previous;
    else last_waiter = waiter->previous;
}

/* Wakes a waiting link. QA_NEXT_Reply writes the reply in the next round of the event loop. `timer_is_over` 1: the
 * timer of the waiter has called this function, so there is no timer to stop. */
static void wake(Waiter *waiter, int timer_is_over) {
    if (waiter->woken) return;
    waiter->woken = 1;
    if (!timer_is_over) RedisModule_StopTimer(server_ctx(), waiter->timer, NULL);
    RedisModule_UnblockClient(waiter->client, waiter);
}

static void wake_next(void) {
    for (Waiter *at = waiters; at && !at->woken; at = at->next) {
        if (!queues_available(supervisor_is_ready(), &at->capacity)) continue;
        wake(at, 0);
        return;
    }
}

static void reply_jobs(RedisModuleCtx *ctx, JobsCapacity capacity) {
    int ready = supervisor_is_ready();
    if (!queues_available(ready, &capacity)) {
        RedisModule_ReplyWithNullArray(ctx);
        return;
    }
    long count = 0;
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    while (count < MAX_JOBS_PER_CALL && jobs_hand_out(ctx, ready, &capacity)) count++;
    RedisModule_ReplySetArrayLength(ctx, count);
    registry_repair();
}

static int QA_NEXT_Reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Waiter *waiter = RedisModule_GetBlockedClientPrivateData(ctx);
    if (link_is_link(RedisModule_GetClientId(ctx))) reply_jobs(ctx, waiter->capacity);
    else RedisModule_ReplyWithNullArray(ctx);
    return REDISMODULE_OK;
}

static void QA_NEXT_Free(RedisModuleCtx *ctx, void *data) {
    remove_waiter(data);
    RedisModule_Free(data);
    wake_next();
}

static void QA_NEXT_Timeout(RedisModuleCtx *ctx, void *data) { wake(data, 1); }

static void QA_NEXT_Disconnected(RedisModuleCtx *ctx, RedisModuleBlockedClient *client) {
    for (Waiter *at = waiters; at; at = at->next)
        if (at->client == client) wake(at, 0);
}

static int parse_room(RedisModuleString *word, long long *capacity) {
    return RedisModule_StringToLongLong(word, capacity) == REDISMODULE_OK && *capacity >= 0 &&
           *capacity <= MAX_JOBS_PER_CALL;
}

static int QA_NEXT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long wait_ms;
    if (!link_require(ctx, "QA.NEXT")) return REDISMODULE_OK;
    if (argc != 3 && argc != 5) return RedisModule_WrongArity(ctx);
    JobsCapacity capacity = {.functions = MAX_JOBS_PER_CALL, .background = MAX_JOBS_PER_CALL};
    if (!parse_room(argv[1], &capacity.all))
        return RedisModule_ReplyWithError(ctx, "ERR max must be between 0 and 1024");
    if (argc == 5 && (!parse_room(argv[3], &capacity.functions) || !parse_room(argv[4], &capacity.background)))
        return RedisModule_ReplyWithError(ctx, "ERR functions and background must be between 0 and 1024");
    if (RedisModule_StringToLongLong(argv[2], &wait_ms) != REDISMODULE_OK || wait_ms < 0 || wait_ms > MAX_WAIT_MS)
        return RedisModule_ReplyWithError(ctx, "ERR wait_ms must be between 0 and 60000");
    cancelled_asked();
    if (wait_ms == 0 || caller_blocking_denied(ctx) || queues_available(supervisor_is_ready(), &capacity)) {
        reply_jobs(ctx, capacity);
        return REDISMODULE_OK;
    }
    RedisModuleBlockedClient *client = RedisModule_BlockClient(ctx, QA_NEXT_Reply, NULL, QA_NEXT_Free, 0);
    if (!client) { /* Valkey does not block a client with subscriptions */
        reply_jobs(ctx, capacity);
        return REDISMODULE_OK;
    }
    Waiter *waiter = RedisModule_Calloc(1, sizeof *waiter);
    waiter->capacity = capacity;
    waiter->client = client;
    RedisModule_SetDisconnectCallback(waiter->client, QA_NEXT_Disconnected);
    waiter->timer = RedisModule_CreateTimer(ctx, wait_ms, QA_NEXT_Timeout, waiter);
    add_waiter(waiter);
    return REDISMODULE_OK;
}

/* ---- QA.READY, QA.DONE ---- */

/* QA.READY [backend version]..: after this command, links get jobs of all kinds. */
static int QA_READY_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.READY")) return REDISMODULE_OK;
    if (argc % 2 == 0) return RedisModule_WrongArity(ctx);
    if (!supervisor_backends(argv + 1, argc - 1))
        return RedisModule_ReplyWithError(
            ctx, "ERR QA.READY accepts at most 8 backends, each with a plain name and a plain version");
    supervisor_ready();
    wake_next();
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int QA_DONE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    static const struct {
        const char *word;
        JobStatus status;
        int min_argc, max_argc;
        JobCause cause;
    } WORDS[] = {{"OK", JOB_OK, 3, 4, CAUSE_ANSWERED},         {"OVERRIDE", JOB_OVERRIDE, 4, 4, CAUSE_ANSWERED},
                 {"SKIP", JOB_SKIP, 3, 3, CAUSE_ANSWERED},     {"ERR", JOB_FAILED, 4, 4, CAUSE_ANSWERED},
                 {"ABORTED", JOB_FAILED, 4, 4, CAUSE_ABORTED}, {"TENSORS", JOB_TENSORS, 4, 1 << 24, CAUSE_ANSWERED},
                 {"DAG", JOB_DAG, 5, 1 << 24, CAUSE_ANSWERED}, {"TIMEDOUT", JOB_TIMEDOUT, 3, 3, CAUSE_ANSWERED}};
    long long id;
    if (!link_require(ctx, "QA.DONE")) return REDISMODULE_OK;
    if (argc < 3) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &id) != REDISMODULE_OK || id < 1)
        return RedisModule_ReplyWithError(ctx, "ERR job id must be a positive integer");
    const char *word = RedisModule_StringPtrLen(argv[2], NULL);
    size_t i = 0, count = sizeof WORDS / sizeof *WORDS;
    while (i < count && strcasecmp(WORDS[i].word, word)) i++;
    if (i == count)
        return RedisModule_ReplyWithError(
            ctx, "ERR status must be OK, OVERRIDE, SKIP, ERR, ABORTED, TENSORS, DAG or TIMEDOUT");
    if (argc < WORDS[i].min_argc || argc > WORDS[i].max_argc) return RedisModule_WrongArity(ctx);
    JobResult result = {.status = WORDS[i].status, .argv = argv + 3, .argc = argc - 3, .cause = WORDS[i].cause};
    if (result.status == JOB_FAILED) {
        result.error = RedisModule_StringPtrLen(argv[3], NULL);
        result.argc = 0;
    }
    if (jobs_done(ctx, (uint64_t)id, &result)) return RedisModule_ReplyWithSimpleString(ctx, "OK");
    char error[64];
    snprintf(error, sizeof error, "NOJOB no such job: %lld", id);
    return RedisModule_ReplyWithError(ctx, error);
}

/* ---- QA.SEND ---- */

typedef struct Message {
    char sender[REDISMODULE_NODE_ID_LEN];
    size_t length;
    char payload[];
} Message;

static int emit_message(RedisModuleCtx *ctx, void *data) {
    const Message *message = data;
    RedisModule_ReplyWithStringBuffer(ctx, message->sender, sizeof message->sender);
    RedisModule_ReplyWithStringBuffer(ctx, message->payload, message->length);
    return 2;
}

static size_t queued_message_bytes;

static void free_message(void *data) {
    queued_message_bytes -= ((Message *)data)->length;
    RedisModule_Free(data);
}

static const JobClass MESSAGE = {.kind = "message", .emit = emit_message, .free = free_message, .before_ready = 1};

/* Drops a message that is too long. Also drops a message if too many bytes are pending for the worker. The sender gets
 * no notice and relies on its own deadline. */
static void deliver(const char *sender, const char *payload, size_t length) {
    if (length > MAX_MESSAGE || queued_message_bytes + length > MAX_QUEUED_MESSAGE_BYTES) {
        RedisModule_Log(server_ctx(), "warning",
                        "message of %zu bytes dropped: %zu bytes are pending for the worker, limit %d", length,
                        queued_message_bytes, MAX_QUEUED_MESSAGE_BYTES);
        return;
    }
    queued_message_bytes += length;
    Message *message = RedisModule_Alloc(sizeof *message + length);
    memcpy(message->sender, sender, sizeof message->sender);
    message->length = length;
    memcpy(message->payload, payload, length);
    jobs_notify(&MESSAGE, message);
}

static void on_cluster_message(RedisModuleCtx *ctx, const char *sender, const char *payload, size_t length) {
    deliver(sender, payload, length);
}

static int QA_SEND_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.SEND")) return REDISMODULE_OK;
    if (argc != 3) return RedisModule_WrongArity(ctx);
    size_t node_length, length;
    const char *node = RedisModule_StringPtrLen(argv[1], &node_length);
    const char *payload = RedisModule_StringPtrLen(argv[2], &length);
    const char *self = RedisModule_GetMyClusterID();
    char error[128];
    if (length > MAX_MESSAGE) {
        snprintf(error, sizeof error, "ERR message is too long: %zu bytes, limit %d", length, MAX_MESSAGE);
        return RedisModule_ReplyWithError(ctx, error);
    }
    if (node_length == REDISMODULE_NODE_ID_LEN && self && !memcmp(node, self, REDISMODULE_NODE_ID_LEN)) {
        deliver(node, payload, length);
        return RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
    if (node_length != REDISMODULE_NODE_ID_LEN || !self) {
        snprintf(error, sizeof error, "ERR unknown node: %.64s", node);
        return RedisModule_ReplyWithError(ctx, error);
    }
    const char *fault = bus_send(ctx, node, CLUSTER_MESSAGE, payload, length);
    return fault ? RedisModule_ReplyWithError(ctx, fault) : RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int qa_commands_on_load(RedisModuleCtx *ctx) {
    static const JobsWorker WORKER = {.refusal = supervisor_refusal, .wake = wake_next, .kill = supervisor_kill};
    static const CommandSpec COMMANDS[] = {
        {"qa.hello", QA_HELLO_RedisCommand, "admin deny-script no-auth allow-stale no-monitor no-slowlog fast", 0, 0, 0,
         "admin dangerous fast"},
        {"qa.ready", QA_READY_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.beat", QA_BEAT_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.next", QA_NEXT_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous blocking"},
        {"qa.done", QA_DONE_RedisCommand, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous"},
        {"qa.send", QA_SEND_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
    };
    jobs_attach(&WORKER);
    bus_receive(ctx, CLUSTER_MESSAGE, on_cluster_message);
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

#include "server/link.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "functions/atomic.h"
#include "functions/calling.h"
#include "server/config.h"
#include "jobs/jobs.h"
#include "module.h"
#include "functions/registry.h"
#include "functions/registry_admin.h"
#include "functions/registry_stats.h"
#include "worker/supervisor.h"

enum { PROTOCOL = 2, MAX_JOBS_PER_CALL = 1024, MAX_WAIT_MS = 60000, MAX_MESSAGE = 1 << 20 };
enum { MAX_QUEUED_MESSAGE_BYTES = 64 << 20 };

/* A link that is blocked in QA.NEXT. Jobs leave the queue only when its reply is written: a link that goes away before that
 * takes nothing with it. */
typedef struct Waiter {
    RedisModuleBlockedClient *client;
    long long max;
    RedisModuleTimerID timer;
    int woken; /* its reply is due */
    struct Waiter *next;
    struct Waiter *previous;
} Waiter;

static RedisModuleUser *user;
static RedisModuleDict *links;   /* client id -> links */
static RedisModuleDict *allowed; /* names of the internal commands */
static Waiter *waiters;          /* oldest first */
static Waiter *last_waiter;

RedisModuleUser *link_user(void) { return user; }

int link_is_link(unsigned long long client_id) {
    int missing = 1;
    if (links && client_id) RedisModule_DictGetC(links, &client_id, sizeof client_id, &missing);
    return !missing;
}

int link_count(void) { return (int)RedisModule_DictSize(links); }

int link_require(RedisModuleCtx *ctx, const char *command) {
    char error[128];
    if (link_is_link(RedisModule_GetClientId(ctx))) return 1;
    snprintf(error, sizeof error, "NOPERM %s is internal to the worker", command);
    RedisModule_ReplyWithError(ctx, error);
    return 0;
}

/* ---- QA.HELLO ---- */

static void on_user_changed(uint64_t client_id, void *data) {
    (void)data;
    unsigned long long id = client_id;
    RedisModule_DictDelC(links, &id, sizeof id, NULL);
}

static int hello_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3) return RedisModule_WrongArity(ctx);
    size_t length;
    long long version;
    if (RedisModule_StringToLongLong(argv[1], &version) != REDISMODULE_OK || version != PROTOCOL) {
        char error[128];
        snprintf(error, sizeof error, "PROTOCOL worker speaks version %.32s, module speaks %d",
                 RedisModule_StringPtrLen(argv[1], NULL), PROTOCOL);
        return RedisModule_ReplyWithError(ctx, error);
    }
    const char *token = RedisModule_StringPtrLen(argv[2], &length);
    if (!supervisor_check_token(token, length)) return RedisModule_ReplyWithError(ctx, "NOPERM wrong worker token");
    uint64_t client_id = 0;
    if (RedisModule_AuthenticateClientWithUser(ctx, user, on_user_changed, NULL, &client_id) != REDISMODULE_OK)
        return RedisModule_ReplyWithError(ctx, "NOPERM this client cannot become a link");
    unsigned long long id = RedisModule_GetClientId(ctx);
    RedisModule_DictReplaceC(links, &id, sizeof id, links);
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
    RedisModule_ReplySetArrayLength(ctx, 6 + config_reply_pairs(ctx));
    return REDISMODULE_OK;
}

static int ready_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (!link_require(ctx, "QA.READY")) return REDISMODULE_OK;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    supervisor_ready();
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int beat_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (!link_require(ctx, "QA.BEAT")) return REDISMODULE_OK;
    if (argc != 7) return RedisModule_WrongArity(ctx);
    long long numbers[6];
    for (int i = 0; i < 6; i++)
        if (RedisModule_StringToLongLong(argv[1 + i], &numbers[i]) != REDISMODULE_OK || numbers[i] < 0)
            return RedisModule_ReplyWithError(ctx, "ERR the numbers of QA.BEAT must be integers from 0");
    WorkerBeat beat = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    supervisor_beat(&beat);
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

/* Its reply is written in the next round of the event loop, by on_next_reply. */
static void wake(Waiter *waiter, int timer_is_over) {
    if (waiter->woken) return;
    waiter->woken = 1;
    if (!timer_is_over) RedisModule_StopTimer(module_ctx(), waiter->timer, NULL);
    RedisModule_UnblockClient(waiter->client, waiter);
}

/* One link at a time: what it leaves wakes the next. */
void link_wake(void) {
    for (Waiter *at = waiters; at && !at->woken; at = at->next) {
        if (!jobs_available(supervisor_is_ready(), at->max == 0)) continue;
        wake(at, 0);
        return;
    }
}

static void reply_jobs(RedisModuleCtx *ctx, long long max) {
    int ready = supervisor_is_ready();
    int only_notices = max == 0;
    if (!jobs_available(ready, only_notices)) {
        RedisModule_ReplyWithNullArray(ctx);
        return;
    }
    long count = 0, most = only_notices ? MAX_JOBS_PER_CALL : max;
    RedisModule_ReplyWithArray(ctx, REDISMODULE_POSTPONED_LEN);
    while (count < most && jobs_hand_out(ctx, ready, only_notices)) count++;
    RedisModule_ReplySetArrayLength(ctx, count);
    registry_repair(ctx);
}

static int on_next_reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    Waiter *waiter = RedisModule_GetBlockedClientPrivateData(ctx);
    if (link_is_link(RedisModule_GetClientId(ctx))) reply_jobs(ctx, waiter->max);
    else RedisModule_ReplyWithNullArray(ctx);
    return REDISMODULE_OK;
}

static void on_next_free(RedisModuleCtx *ctx, void *data) {
    (void)ctx;
    remove_waiter(data);
    RedisModule_Free(data);
    link_wake();
}

static void on_next_timeout(RedisModuleCtx *ctx, void *data) {
    (void)ctx;
    wake(data, 1);
}

static void on_next_disconnect(RedisModuleCtx *ctx, RedisModuleBlockedClient *client) {
    (void)ctx;
    for (Waiter *at = waiters; at; at = at->next)
        if (at->client == client) wake(at, 0);
}

static int next_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long max, wait_ms;
    if (!link_require(ctx, "QA.NEXT")) return REDISMODULE_OK;
    if (argc != 3) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &max) != REDISMODULE_OK || max < 0 || max > MAX_JOBS_PER_CALL)
        return RedisModule_ReplyWithError(ctx, "ERR max must be between 0 and 1024");
    if (RedisModule_StringToLongLong(argv[2], &wait_ms) != REDISMODULE_OK || wait_ms < 0 || wait_ms > MAX_WAIT_MS)
        return RedisModule_ReplyWithError(ctx, "ERR wait_ms must be between 0 and 60000");
    jobs_asked();
    if (wait_ms == 0 || module_blocking_denied(ctx) || jobs_available(supervisor_is_ready(), max == 0)) {
        reply_jobs(ctx, max);
        return REDISMODULE_OK;
    }
    Waiter *waiter = RedisModule_Calloc(1, sizeof *waiter);
    waiter->max = max;
    waiter->client = RedisModule_BlockClient(ctx, on_next_reply, NULL, on_next_free, 0);
    RedisModule_SetDisconnectCallback(waiter->client, on_next_disconnect);
    waiter->timer = RedisModule_CreateTimer(ctx, wait_ms, on_next_timeout, waiter);
    add_waiter(waiter);
    return REDISMODULE_OK;
}

/* ---- QA.DONE ---- */

static int done_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    static const struct {
        const char *word;
        JobStatus status;
        int min_argc, max_argc;
    } WORDS[] = {{"OK", JOB_OK, 3, 4},       {"OVERRIDE", JOB_OVERRIDE, 4, 4}, {"SKIP", JOB_SKIP, 3, 3},
                 {"ERR", JOB_FAILED, 4, 4}, {"TENSORS", JOB_TENSORS, 4, 1 << 24},
                 {"DAG", JOB_DAG, 5, 1 << 24}, {"TIMEDOUT", JOB_TIMEDOUT, 3, 3}};
    long long id;
    if (!link_require(ctx, "QA.DONE")) return REDISMODULE_OK;
    if (argc < 3) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &id) != REDISMODULE_OK || id < 1)
        return RedisModule_ReplyWithError(ctx, "ERR job id must be a positive integer");
    const char *word = RedisModule_StringPtrLen(argv[2], NULL);
    size_t i = 0, count = sizeof WORDS / sizeof *WORDS;
    while (i < count && strcasecmp(WORDS[i].word, word)) i++;
    if (i == count) return RedisModule_ReplyWithError(ctx, "ERR status must be OK, OVERRIDE, SKIP, ERR, TENSORS, DAG or TIMEDOUT");
    if (argc < WORDS[i].min_argc || argc > WORDS[i].max_argc) return RedisModule_WrongArity(ctx);
    JobResult result = {.status = WORDS[i].status, .argv = argv + 3, .argc = argc - 3, .cause = CAUSE_ANSWERED};
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

/* What is too much while no worker takes it is dropped: senders are promised nothing but their own deadline. */
static void deliver(const char *sender, const char *payload, size_t length) {
    if (length > MAX_MESSAGE || queued_message_bytes + length > MAX_QUEUED_MESSAGE_BYTES) {
        RedisModule_Log(module_ctx(), "warning", "message of %zu bytes dropped: %zu bytes wait for the worker, limit %d", length,
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

static void on_cluster_message(RedisModuleCtx *ctx, const char *sender, uint8_t type, const unsigned char *payload,
                               uint32_t length) {
    if (type == CLUSTER_MESSAGE) deliver(sender, (const char *)payload, length);
    else if (type == CLUSTER_ADMIN) registry_admin_message(ctx, (const char *)payload, length);
}

static int send_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
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
    if (node_length != REDISMODULE_NODE_ID_LEN || !self ||
        RedisModule_SendClusterMessage(ctx, node, CLUSTER_MESSAGE, payload, (uint32_t)length) != REDISMODULE_OK) {
        snprintf(error, sizeof error, "ERR unknown node: %.64s", node);
        return RedisModule_ReplyWithError(ctx, error);
    }
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

/* ---- Life ---- */

void link_close_all(RedisModuleCtx *ctx) {
    size_t count = RedisModule_DictSize(links), n = 0, length;
    unsigned long long *ids = RedisModule_Alloc((count + 1) * sizeof *ids);
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(links, "^", NULL, 0);
    for (void *key; n < count && (key = RedisModule_DictNextC(iterator, &length, NULL));) memcpy(&ids[n++], key, sizeof *ids);
    RedisModule_DictIteratorStop(iterator);
    for (size_t i = 0; i < n; i++) {
        RedisModule_DictDelC(links, &ids[i], sizeof ids[i], NULL);
        RedisModule_DeauthenticateAndCloseClient(ctx, ids[i]);
    }
    RedisModule_Free(ids);
}

void link_allow_command(const char *name) {
    if (!allowed) allowed = RedisModule_CreateDict(NULL);
    RedisModule_DictReplaceC(allowed, (void *)name, strlen(name), (void *)name);
}

/* The internal commands are administrator commands, so that no other user has them; the worker's user gets them by name. */
int link_create_user(RedisModuleCtx *ctx) {
    static const char *const RIGHTS[] = {"on", "allkeys", "allchannels", "+@all", "-@admin"};
    user = RedisModule_CreateModuleUser(LINK_USER_NAME);
    for (size_t i = 0; i < sizeof RIGHTS / sizeof *RIGHTS; i++)
        if (RedisModule_SetModuleUserACL(user, RIGHTS[i]) != REDISMODULE_OK) return REDISMODULE_ERR;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(allowed, "^", NULL, 0);
    int failed = 0;
    void *name;
    while (RedisModule_DictNextC(iterator, NULL, &name)) {
        char right[64];
        snprintf(right, sizeof right, "+%s", (const char *)name);
        if (RedisModule_SetModuleUserACL(user, right) == REDISMODULE_OK) continue;
        RedisModule_Log(ctx, "warning", "the worker's user cannot be given %s", right);
        failed = 1;
    }
    RedisModule_DictIteratorStop(iterator);
    return failed ? REDISMODULE_ERR : REDISMODULE_OK;
}

int link_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"qa.hello", hello_command, "admin deny-script no-auth allow-stale no-monitor no-slowlog fast", 0, 0, 0,
         "admin dangerous fast"},
        {"qa.ready", ready_command, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.beat", beat_command, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.next", next_command, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous blocking"},
        {"qa.done", done_command, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous"},
        {"qa.send", send_command, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.sessions", registry_sessions_command, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.register", registry_register_command, LINK_COMMAND_FLAGS " write", 0, 0, 0, "admin dangerous write"},
        {"qa.as", calling_command, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous write"},
        {"qa.stream", registry_stream_command, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous"},
        {"qa.atomic", atomic_command, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous write"},
    };
    links = RedisModule_CreateDict(NULL);
    RedisModule_RegisterClusterMessageReceiver(ctx, CLUSTER_MESSAGE, on_cluster_message);
    RedisModule_RegisterClusterMessageReceiver(ctx, CLUSTER_ADMIN, on_cluster_message);
    return module_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

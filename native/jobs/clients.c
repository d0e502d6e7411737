/* CLIENTS THAT TRACK KEYS (CLIENT TRACKING). A client may read a missing key and wait for a job that makes the key.
 * When the job ends, the server must record the client as a reader of the key. But the server records no keys while a
 * module replies to a blocked client, unless the client is blocked on a key that becomes ready. So on Redis 7.2 and
 * later and on Valkey:
 * 1. The module blocks a client that tracks keys on the key that the client has missed.
 * 2. When the job ends, the module signals the key as ready.
 * 3. The server calls JOB_Read while it serves the client, and JOB_Read reads the key.
 * 4. The client is unblocked.
 *
 * If a client is blocked on a key and stops waiting, for any reason, the server frees its job. */
#include "jobs/clients.h"

#include "server/caller.h"
#include "server/server.h"

static RedisModuleDict *by_client; /* pointer to the blocked client -> Job, until the job has ended */
static void (*left)(RedisModuleCtx *ctx, Job *job);

void clients_on_load(void (*on_left)(RedisModuleCtx *ctx, Job *job)) {
    by_client = RedisModule_CreateDict(NULL);
    left = on_left;
}

static void JOB_Free(RedisModuleCtx *ctx, void *data) { job_free(data); }

static int JOB_Reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Job *job = RedisModule_GetBlockedClientPrivateData(ctx);
    if (job->refusal) RedisModule_ReplyWithError(ctx, job->refusal);
    else if (job->class->reply) job->class->reply(ctx, job->data, &job->result);
    else job_default_reply(ctx, &job->result);
    return REDISMODULE_OK;
}

static void JOB_Disconnected(RedisModuleCtx *ctx, RedisModuleBlockedClient *client) {
    Job *job = RedisModule_DictGetC(by_client, &client, sizeof client, NULL);
    if (job) left(ctx, job); /* NULL: the job has ended, but its client left before the reply */
}

/* The reply to a client that is blocked on a key. Its job has ended, or CLIENT UNBLOCK has unblocked the client. */
static int JOB_Unblocked(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Job *job = RedisModule_GetBlockedClientPrivateData(ctx);
    if (job->state != JOB_ENDED) left(ctx, job);
    return JOB_Reply(ctx, argv, argc);
}

/* Called when the key is ready, maybe because of another client's job. Reads the key, but does not reply: after a reply
 * in JOB_Read, the server would count the client as blocked for some time. JOB_Reply sends the reply later. */
static int JOB_Read(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Job *job = RedisModule_GetBlockedClientPrivateData(ctx);
    if (!job->is_signalled) return REDISMODULE_ERR;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "EXISTS", "s", job->awaited);
    if (reply) RedisModule_FreeCallReply(reply);
    RedisModule_StopTimer(server_ctx(), job->unserved, NULL);
    job->is_signalled = 0;
    RedisModule_UnblockClient(job->client, job);
    return REDISMODULE_ERR;
}

/* Called by a timer if the server has not called JOB_Read within 1 ms after the module has signalled the key. Unblocks
 * the client without a read of the key. */
static void JOB_Unserved(RedisModuleCtx *ctx, void *data) {
    Job *job = data;
    job->is_signalled = 0;
    RedisModule_UnblockClient(job->client, job);
}

static void unblock(RedisModuleCtx *ctx, Job *job) {
    if (!job->awaited) {
        RedisModule_UnblockClient(job->client, job);
        return;
    }
    job->is_signalled = 1;
    job->unserved = RedisModule_CreateTimer(server_ctx(), 1, JOB_Unserved, job);
    RedisModule_SignalKeyAsReady(ctx, job->awaited);
}

int clients_block(RedisModuleCtx *ctx, Job *job) {
    if (job->class->awaited && RedisModule_BlockClientOnKeysWithFlags && RedisModule_SignalKeyAsReady &&
        caller_tracks_keys(ctx)) {
        job->awaited = RedisModule_CreateStringFromString(NULL, job->class->awaited(job->data));
        job->client = RedisModule_BlockClientOnKeysWithFlags(ctx, JOB_Read, JOB_Unblocked, JOB_Free, 0, &job->awaited,
                                                             1, job, REDISMODULE_BLOCK_UNBLOCK_DELETED);
    } else {
        job->client = RedisModule_BlockClient(ctx, JOB_Reply, NULL, JOB_Free, 0);
    }
    if (!job->client) return 0;
    RedisModule_SetDisconnectCallback(job->client, JOB_Disconnected);
    RedisModule_DictSetC(by_client, &job->client, sizeof job->client, job);
    return 1;
}

void clients_release(RedisModuleCtx *ctx, Job *job) {
    RedisModule_DictDelC(by_client, &job->client, sizeof job->client, NULL);
    if (job->started_us && !job->class->unmeasured) RedisModule_BlockedClientMeasureTimeEnd(job->client);
    if (!job->awaited || job->result.cause != CAUSE_CLIENT_GONE) unblock(ctx, job);
}

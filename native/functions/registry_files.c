/* Saves the sessions in the RDB file and in the AOF, and loads them. Loading replaces all sessions.
 *
 * In the RDB file, the sessions are auxiliary data: they belong to no key. The commands that change sessions are
 * replicated, so the AOF and the replicas have the sessions, too. */
#include "functions/registry.h"
#include "functions/tombstones.h"
#include "server/resp.h"
#include "server/server.h"

enum { ENCODING_VERSION = 5, UNSIGNED_VERSION = 4, PAUSED_RETRY_MS = 100 };

/* ---- The RDB file ---- */

enum { SAVED_RUNNING, SAVED_PAUSED, SAVED_ABORTED }; /* stored in RDB files: never renumber */

static void save_status(RedisModuleIO *rdb, const Registration *registration) {
    int aborted = registration->status == STREAM_ABORTED;
    RedisModule_SaveUnsigned(rdb, registration->paused ? SAVED_PAUSED : aborted ? SAVED_ABORTED : SAVED_RUNNING);
    RedisModule_SaveUnsigned(rdb, (uint64_t)registration->pause_order);
}

/* Reads the status of a registration from an RDB file. Returns 1, or 0 if the file is damaged. */
static int load_status(RedisModuleIO *rdb, Registration *registration) {
    uint64_t saved = RedisModule_LoadUnsigned(rdb);
    registration->paused = saved == SAVED_PAUSED;
    registration->status = saved == SAVED_ABORTED ? STREAM_ABORTED : STREAM_OK;
    uint64_t order = RedisModule_LoadUnsigned(rdb);
    registration->pause_order = order > MAX_PAUSE_ORDER ? 0 : (long long)order;
    return order <= MAX_PAUSE_ORDER;
}

static void aux_save(RedisModuleIO *rdb, int when) {
    RedisModule_SaveUnsigned(rdb, registry_sessions());
    for (Session *session = registry_first_session(); session; session = session->next) {
        for (int i = 0; i < SESSION_FIELDS; i++) RedisModule_SaveString(rdb, session->fields[i]);
        RedisModule_SaveUnsigned(rdb, (uint64_t)session->count);
        for (long long i = 0; i < session->count; i++) {
            for (int j = 0; j < REG_FIELDS; j++) RedisModule_SaveString(rdb, session->registrations[i]->fields[j]);
            save_status(rdb, session->registrations[i]);
        }
        RedisModuleString *tag = session_sign(session);
        RedisModule_SaveString(rdb, tag);
        RedisModule_FreeString(NULL, tag);
    }
    tombstones_save(rdb);
}

/* Saves the sessions and tombstones. If the server has no session and no tombstone, saves nothing, so that a server
 * without the module can load the file. Servers that do not know `aux_save2` do not call this function, but
 * aux_save. */
static void aux_save_if_any(RedisModuleIO *rdb, int when) {
    if (registry_sessions() || tombstones_count()) aux_save(rdb, when);
}

static int load_strings(RedisModuleIO *rdb, RedisModuleString **strings, int count) {
    for (int i = 0; i < count; i++) {
        strings[i] = RedisModule_LoadString(rdb);
        if (!RedisModule_IsIOError(rdb) && strings[i]) continue;
        for (int j = 0; j <= i; j++)
            if (strings[j]) RedisModule_FreeString(NULL, strings[j]);
        return 0;
    }
    return 1;
}

/* Reads a registration from an RDB file and adds it to the session. Returns 1, or 0 if the file is damaged. */
static int load_registration(RedisModuleIO *rdb, Session *session) {
    RedisModuleString *fields[REG_FIELDS] = {NULL};
    if (!load_strings(rdb, fields, REG_FIELDS)) return 0;
    Registration *registration = registration_new(fields);
    session->registrations[session->count++] = registration;
    if (!load_status(rdb, registration) || RedisModule_IsIOError(rdb)) return 0;
    RedisModuleString *error = registration_check_class(fields);
    if (error) RedisModule_FreeString(NULL, error);
    size_t length;
    const char *args = RedisModule_StringPtrLen(fields[REG_ARGS], &length);
    return !error && resp_valid(args, length, 0); /* RG.DUMPREGISTRATIONS replies with the args */
}

static Session *load_session(RedisModuleIO *rdb) {
    Session *session = RedisModule_Calloc(1, sizeof *session);
    if (!load_strings(rdb, session->fields, 4)) {
        RedisModule_Free(session);
        return NULL;
    }
    uint64_t count = RedisModule_LoadUnsigned(rdb);
    if (RedisModule_IsIOError(rdb) || count > MAX_REGISTRATIONS) count = 0;
    session->registrations = RedisModule_Calloc(count + 1, sizeof *session->registrations);
    int good = count > 0;
    for (uint64_t i = 0; i < count && good; i++) good = load_registration(rdb, session);
    if (good) return session;
    session_free(session);
    return NULL;
}

/* Loads the tag of a session, and adds the session if it is trusted. 0: the file is damaged. */
static int load_trusted(RedisModuleIO *rdb, int encver, Session *session) {
    RedisModuleString *tag = NULL;
    if (encver >= ENCODING_VERSION && !load_strings(rdb, &tag, 1)) {
        session_free(session);
        return 0;
    }
    if (session_is_trusted(session, tag)) registry_replace_session(NULL, session);
    else session_free(session);
    if (tag) RedisModule_FreeString(NULL, tag);
    return 1;
}

static int aux_load(RedisModuleIO *rdb, int encver, int when) {
    if (encver != ENCODING_VERSION && encver != UNSIGNED_VERSION) {
        RedisModule_LogIOError(rdb, "warning", "registrations have encoding version %d, this module reads version %d",
                               encver, ENCODING_VERSION);
        return REDISMODULE_ERR;
    }
    registry_clear();
    registry_mark_stale();
    uint64_t count = RedisModule_LoadUnsigned(rdb);
    for (uint64_t i = 0; i < count; i++) {
        Session *session = RedisModule_IsIOError(rdb) ? NULL : load_session(rdb);
        if (!session || !load_trusted(rdb, encver, session)) {
            RedisModule_LogIOError(rdb, "warning", "registrations are damaged: session %llu", (unsigned long long)i);
            return REDISMODULE_ERR;
        }
    }
    if (!tombstones_load(rdb)) {
        RedisModule_LogIOError(rdb, "warning", "registrations are damaged: tombstones");
        return REDISMODULE_ERR;
    }
    return REDISMODULE_OK;
}

/* Runs after the server has adopted sessions: it has loaded them without a valid tag (qa.adopt-registrations). In the
 * AOF, these sessions have no valid tag. A rewrite of the AOF writes the sessions with a tag. */
static void on_adopted(RedisModuleCtx *ctx, void *data) {
    if (!server_setting_is(ctx, "appendonly", "yes")) return;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "BGREWRITEAOF", "");
    if (reply) RedisModule_FreeCallReply(reply);
}

/* Removes all sessions before the server loads a data set (restart, DEBUG RELOAD, full synchronization). If the server
 * has adopted sessions, plans on_adopted for the time after the load. */
static void on_loading(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    if (subevent == REDISMODULE_SUBEVENT_LOADING_ENDED && sessions_take_adopted())
        RedisModule_CreateTimer(ctx, 0, on_adopted, NULL);
    if (subevent > REDISMODULE_SUBEVENT_LOADING_REPL_START) return;
    if (registry_first_session()) registry_mark_stale();
    registry_clear();
}

/* ---- Rewriting the AOF as commands (aof-use-rdb-preamble no) ---- */

static void replicate_session(RedisModuleCtx *ctx, const Session *session) {
    size_t count = 0;
    RedisModuleString **argv = RedisModule_Alloc((6 + (size_t)session->count * REG_FIELDS) * sizeof *argv);
    for (int i = 0; i < SESSION_FIELDS; i++) argv[count++] = session->fields[i];
    argv[count++] = RedisModule_CreateStringFromLongLong(NULL, session->count);
    for (long long i = 0; i < session->count; i++)
        for (int j = 0; j < REG_FIELDS; j++) argv[count++] = session->registrations[i]->fields[j];
    RedisModuleString *tag = argv[count++] = session_sign(session);
    RedisModule_Replicate(ctx, "QA.REGISTER", "v", argv, count);
    RedisModule_FreeString(NULL, tag);
    for (long long i = 0; i < session->count; i++) {
        const Registration *registration = session->registrations[i];
        if (registration->pause_order)
            RedisModule_Replicate(ctx, "QA.PAUSE", "sl", registration->fields[REG_ID], registration->pause_order);
        if (registration->status == STREAM_ABORTED)
            RedisModule_Replicate(ctx, "QA.STREAM", "sc", registration->fields[REG_ID], "ABORTED");
        if (registration->paused && !(registration->pause_order & 1)) /* a function of this shard paused it */
            RedisModule_Replicate(ctx, "QA.STREAM", "sc", registration->fields[REG_ID], "PAUSED");
    }
    RedisModule_FreeString(NULL, argv[4]);
    RedisModule_Free(argv);
}

static void on_fork_timer(RedisModuleCtx *ctx, void *data) {
    if ((!registry_sessions() && !tombstones_count()) || !server_is_active_primary(ctx) ||
        !server_setting_is(ctx, "aof-use-rdb-preamble", "no"))
        return;
    if (RedisModule_AvoidReplicaTraffic()) {
        RedisModule_CreateTimer(ctx, PAUSED_RETRY_MS, on_fork_timer, NULL);
        return;
    }
    for (Session *session = registry_first_session(); session; session = session->next) replicate_session(ctx, session);
    tombstones_replicate(ctx);
}

/* In an AOF rewrite as commands, the server writes only keys. So after the fork, the module replicates its
 * registrations again: the server appends replicated commands to the new AOF. */
static void on_fork(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    if (subevent == REDISMODULE_SUBEVENT_FORK_CHILD_BORN) RedisModule_CreateTimer(ctx, 0, on_fork_timer, NULL);
}

static void *no_load(RedisModuleIO *rdb, int encver) {
    RedisModule_LogIOError(rdb, "warning", "registrations are not keys");
    return NULL;
}

static void no_save(RedisModuleIO *rdb, void *value) {}

static void no_free(void *value) { (void)value; }

int registry_files_on_load(RedisModuleCtx *ctx) {
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = no_load,
        .rdb_save = no_save,
        .free = no_free,
        .aux_load = aux_load,
        .aux_save = aux_save,
        .aux_save2 = aux_save_if_any,
        .aux_save_triggers = REDISMODULE_AUX_BEFORE_RDB,
    };
    RedisModuleType *type = RedisModule_CreateDataType(ctx, "qa-regstr", ENCODING_VERSION, &methods);
    RedisModuleEvent loading = {REDISMODULE_EVENT_LOADING, 1};
    RedisModuleEvent fork = {REDISMODULE_EVENT_FORK_CHILD, 1};
    if (!type || RedisModule_SubscribeToServerEvent(ctx, loading, on_loading) != REDISMODULE_OK ||
        RedisModule_SubscribeToServerEvent(ctx, fork, on_fork) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    return REDISMODULE_OK;
}

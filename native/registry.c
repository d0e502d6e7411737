#include "registry.h"

#include <string.h>
#include <strings.h>

#include "config.h"
#include "hook.h"
#include "link.h"
#include "module.h"
#include "resp_reply.h"

typedef struct Session {
    RedisModuleString *fields[4]; /* session, description, source, payload */
    Registration **registrations;
    long long count;
    struct Session *next;
} Session;

enum { ENCODING_VERSION = 1, MAX_REGISTRATIONS = 10000, CLUSTER_UNREGISTER = 2, PAUSED_RETRY_MS = 100 };

static Session *sessions;
static Registration *registrations;
static size_t session_count, registration_count, overflowed_count;
static RedisModuleType *type;
static long long stale_since_ms; /* 0: the worker knows the sessions */

static void mark_stale(void) { stale_since_ms = RedisModule_Milliseconds(); }
void registry_forget_stale(void) { stale_since_ms = 0; }
long long registry_stale_ms(void) { return stale_since_ms ? RedisModule_Milliseconds() - stale_since_ms + 1 : 0; }

Registration *registry_first(void) { return registrations; }
size_t registry_sessions(void) { return session_count; }
size_t registry_registrations(void) { return registration_count; }

static int same(RedisModuleString *a, RedisModuleString *b) { return RedisModule_StringCompare(a, b) == 0; }

Registration *registry_find(RedisModuleString *id) {
    for (Registration *at = registrations; at; at = at->next)
        if (same(at->fields[REG_ID], id)) return at;
    return NULL;
}

Registration *registry_find_trigger(RedisModuleString *trigger) {
    for (Registration *at = registrations; at; at = at->next)
        if (!at->is_keys && same(at->fields[REG_MATCH], trigger)) return at;
    return NULL;
}

/* ---- Matching ---- */

int registration_matches_key(const Registration *registration, const char *key, size_t length) {
    if (registration->match_exact ? length != registration->match_length : length < registration->match_length) return 0;
    return !memcmp(key, registration->match, registration->match_length);
}

int registration_list_has(RedisModuleString *list, const char *word, size_t length) {
    size_t left;
    const char *at = RedisModule_StringPtrLen(list, &left);
    while (left) {
        const char *comma = memchr(at, ',', left);
        size_t size = comma ? (size_t)(comma - at) : left;
        if (size == length && !strncasecmp(at, word, length)) return 1;
        if (!comma) return 0;
        left -= size + 1;
        at = comma + 1;
    }
    return 0;
}

int registration_wants_event(const Registration *registration, const char *event) {
    size_t length;
    RedisModule_StringPtrLen(registration->fields[REG_EVENTS], &length);
    if (!length) return strcasecmp(event, "keymiss") != 0;
    return registration_list_has(registration->fields[REG_EVENTS], event, strlen(event));
}

/* ---- Building and freeing ---- */

static void free_registration(Registration *registration) {
    for (int i = 0; i < REG_FIELDS; i++) RedisModule_FreeString(NULL, registration->fields[i]);
    RedisModule_Free(registration->last_error);
    RedisModule_Free(registration);
}

static void free_session(Session *session) {
    for (int i = 0; i < 4; i++)
        if (session->fields[i]) RedisModule_FreeString(NULL, session->fields[i]);
    for (long long i = 0; i < session->count; i++) free_registration(session->registrations[i]);
    RedisModule_Free(session->registrations);
    RedisModule_Free(session);
}

/* Takes over the nine strings. */
static Registration *new_registration(RedisModuleString **fields) {
    Registration *registration = RedisModule_Calloc(1, sizeof *registration);
    memcpy(registration->fields, fields, sizeof registration->fields);
    registration->is_keys = !strcmp(RedisModule_StringPtrLen(fields[REG_READER], NULL), "KeysReader");
    registration->match = RedisModule_StringPtrLen(fields[REG_MATCH], &registration->match_length);
    registration->match_exact = 1;
    if (registration->is_keys && registration->match_length &&
        registration->match[registration->match_length - 1] == '*') {
        registration->match_length--;
        registration->match_exact = 0;
    }
    return registration;
}

static int is_one_of(RedisModuleString *string, const char *a, const char *b, const char *c) {
    const char *text = RedisModule_StringPtrLen(string, NULL);
    return !strcmp(text, a) || !strcmp(text, b) || (c && !strcmp(text, c));
}

/* NULL, or an error (to be freed). */
static RedisModuleString *check_registration(RedisModuleCtx *ctx, const Registration *registration) {
    RedisModuleString *const *fields = registration->fields;
    size_t length;
    if (!is_one_of(fields[REG_READER], "KeysReader", "CommandReader", NULL))
        return RedisModule_CreateStringPrintf(NULL, "ERR unknown reader: %s, expected KeysReader or CommandReader",
                                              RedisModule_StringPtrLen(fields[REG_READER], NULL));
    if (!is_one_of(fields[REG_MODE], "async", "async_local", "sync"))
        return RedisModule_CreateStringPrintf(NULL, "ERR unknown mode: %s, expected async, async_local or sync",
                                              RedisModule_StringPtrLen(fields[REG_MODE], NULL));
    const char *args = RedisModule_StringPtrLen(fields[REG_ARGS], &length);
    if (!resp_valid(args, length, 0)) return RedisModule_CreateStringPrintf(NULL, "ERR args of a registration is not RESP");
    RedisModule_StringPtrLen(fields[REG_COMMANDS], &length);
    if (!length) return NULL;
    if (!registration->is_keys || !registration_list_has(fields[REG_EVENTS], "keymiss", 7))
        return RedisModule_CreateStringPrintf(NULL, "ERR Can not hook a command without the keymiss event");
    return hook_check_commands(ctx, fields[REG_COMMANDS]);
}

/* Against the other sessions, and within the session itself. */
static RedisModuleString *check_conflicts(const Session *session, const Session *old) {
    for (long long i = 0; i < session->count; i++) {
        const Registration *mine = session->registrations[i];
        RedisModuleString *const *fields = mine->fields;
        for (const Session *at = sessions; at; at = at->next) {
            for (long long j = 0; at != old && j < at->count; j++) {
                const Registration *other = at->registrations[j];
                if (same(other->fields[REG_ID], fields[REG_ID]))
                    return RedisModule_CreateStringPrintf(NULL, "ERR registration id is taken: %s",
                                                          RedisModule_StringPtrLen(fields[REG_ID], NULL));
                if (!mine->is_keys && !other->is_keys && same(other->fields[REG_MATCH], fields[REG_MATCH]))
                    return RedisModule_CreateStringPrintf(NULL, "ERR trigger already registered: %s", mine->match);
            }
        }
        for (long long j = 0; j < i; j++) {
            const Registration *other = session->registrations[j];
            if (same(other->fields[REG_ID], fields[REG_ID]))
                return RedisModule_CreateStringPrintf(NULL, "ERR registration id is taken: %s",
                                                      RedisModule_StringPtrLen(fields[REG_ID], NULL));
            if (!mine->is_keys && !other->is_keys && same(other->fields[REG_MATCH], fields[REG_MATCH]))
                return RedisModule_CreateStringPrintf(NULL, "ERR trigger already registered: %s", mine->match);
        }
    }
    return NULL;
}

static Session *find_session(RedisModuleString *name) {
    for (Session *at = sessions; at; at = at->next)
        if (same(at->fields[0], name)) return at;
    return NULL;
}

/* Rebuilds what is derived from the list of sessions. */
static void index_sessions(void) {
    Registration **end = &registrations;
    session_count = registration_count = overflowed_count = 0;
    for (Session *session = sessions; session; session = session->next) {
        session_count++;
        for (long long i = 0; i < session->count; i++) {
            *end = session->registrations[i];
            end = &(*end)->next;
            registration_count++;
            overflowed_count += (size_t)session->registrations[i]->overflowed;
        }
    }
    *end = NULL;
    hook_rebuild();
}

/* A registration that stays (same id) keeps its counters. */
static void keep_counters(Session *session, Session *old) {
    for (long long i = 0; i < session->count; i++) {
        Registration *now = session->registrations[i];
        for (long long j = 0; j < old->count; j++) {
            Registration *then = old->registrations[j];
            if (!same(now->fields[REG_ID], then->fields[REG_ID])) continue;
            now->overflowed = then->overflowed;
            now->triggered = then->triggered;
            now->succeeded = then->succeeded;
            now->failed = then->failed;
            now->aborted = then->aborted;
            now->last_run_us = then->last_run_us;
            now->total_run_us = then->total_run_us;
            now->last_error = then->last_error;
            then->last_error = NULL;
        }
    }
}

/* Puts `session` in the place of `old` (either may be NULL: added at the end, removed). */
static void replace_session(Session *old, Session *session) {
    Session **link = &sessions;
    while (*link && *link != old) link = &(*link)->next;
    if (session) {
        session->next = old ? old->next : NULL;
        *link = session;
    } else if (old) {
        *link = old->next;
    }
    if (old && session) keep_counters(session, old);
    index_sessions();
    if (old) free_session(old);
}

static void clear(void) {
    while (sessions) replace_session(sessions, NULL);
}

/* ---- QA.REGISTER, QA.SESSIONS ---- */

static Session *parse_session(RedisModuleString **argv, long long count) {
    Session *session = RedisModule_Calloc(1, sizeof *session);
    for (int i = 0; i < 4; i++) session->fields[i] = RedisModule_CreateStringFromString(NULL, argv[1 + i]);
    session->count = count;
    session->registrations = RedisModule_Calloc((size_t)count + 1, sizeof *session->registrations);
    for (long long i = 0; i < count; i++) {
        RedisModuleString *fields[REG_FIELDS];
        for (int j = 0; j < REG_FIELDS; j++)
            fields[j] = RedisModule_CreateStringFromString(NULL, argv[6 + i * REG_FIELDS + j]);
        session->registrations[i] = new_registration(fields);
    }
    return session;
}

/* Replicas and AOF loading take what their primary had accepted. */
static int from_log(RedisModuleCtx *ctx) {
    return (RedisModule_GetContextFlags(ctx) & (REDISMODULE_CTX_FLAGS_REPLICATED | REDISMODULE_CTX_FLAGS_LOADING)) != 0;
}

int registry_register_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long count;
    if (!from_log(ctx) && !link_require(ctx, "QA.REGISTER")) return REDISMODULE_OK;
    if (argc < 6) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[5], &count) != REDISMODULE_OK || count < 0 || count > MAX_REGISTRATIONS ||
        argc != 6 + count * REG_FIELDS)
        return RedisModule_ReplyWithError(ctx, "ERR count of registrations does not match the number of arguments");
    Session *old = find_session(argv[1]), *session = count ? parse_session(argv, count) : NULL;
    RedisModuleString *error = NULL;
    for (long long i = 0; session && !error && i < count; i++)
        error = check_registration(ctx, session->registrations[i]);
    if (session && !error) error = check_conflicts(session, old);
    if (error) {
        RedisModule_ReplyWithError(ctx, RedisModule_StringPtrLen(error, NULL));
        RedisModule_FreeString(NULL, error);
        free_session(session);
        return REDISMODULE_OK;
    }
    replace_session(old, session);
    if (from_log(ctx)) mark_stale();
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int registry_sessions_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (!link_require(ctx, "QA.SESSIONS")) return REDISMODULE_OK;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    registry_forget_stale();
    RedisModule_ReplyWithArray(ctx, (long)session_count);
    for (Session *session = sessions; session; session = session->next) {
        RedisModule_ReplyWithArray(ctx, 4);
        for (int i = 0; i < 4; i++) RedisModule_ReplyWithString(ctx, session->fields[i]);
    }
    return REDISMODULE_OK;
}

/* ---- RG.UNREGISTER ---- */

static int emit_id(RedisModuleCtx *ctx, void *data) {
    RedisModule_ReplyWithString(ctx, data);
    return 1;
}

static void free_id(void *data) { RedisModule_FreeString(NULL, data); }

static const JobClass UNREGISTER = {.kind = "unregister", .emit = emit_id, .free = free_id};

static int unregister(RedisModuleString *id) {
    for (Session *session = sessions; session; session = session->next) {
        for (long long i = 0; i < session->count; i++) {
            Registration *registration = session->registrations[i];
            if (!same(registration->fields[REG_ID], id)) continue;
            jobs_notify(&UNREGISTER, RedisModule_CreateStringFromString(NULL, id));
            memmove(session->registrations + i, session->registrations + i + 1,
                    (size_t)(session->count - i - 1) * sizeof *session->registrations);
            if (--session->count) index_sessions();
            else replace_session(session, NULL);
            free_registration(registration);
            return 1;
        }
    }
    return 0;
}

int registry_unregister_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2 && argc != 3) return RedisModule_WrongArity(ctx);
    if (!from_log(ctx) && !module_require_admin(ctx, "rg.unregister")) return REDISMODULE_OK;
    if (argc == 3 && strcasecmp(RedisModule_StringPtrLen(argv[2], NULL), "abortpending"))
        return RedisModule_ReplyWithError(ctx, "ERR unknown argument of RG.UNREGISTER, expected ABORTPENDING");
    if (!unregister(argv[1])) return RedisModule_ReplyWithError(ctx, "execution is not registered");
    RedisModule_ReplicateVerbatim(ctx);
    int flags = RedisModule_GetContextFlags(ctx);
    if ((flags & REDISMODULE_CTX_FLAGS_CLUSTER) && !from_log(ctx)) {
        size_t length;
        const char *id = RedisModule_StringPtrLen(argv[1], &length);
        RedisModule_SendClusterMessage(ctx, NULL, CLUSTER_UNREGISTER, id, (uint32_t)length);
    }
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static void on_unregister_timer(RedisModuleCtx *ctx, void *data) {
    if (RedisModule_AvoidReplicaTraffic()) {
        RedisModule_CreateTimer(ctx, PAUSED_RETRY_MS, on_unregister_timer, data);
        return;
    }
    if (unregister(data)) RedisModule_Replicate(ctx, "RG.UNREGISTER", "s", (RedisModuleString *)data);
    RedisModule_FreeString(NULL, data);
}

/* Replicas hear of it from their primary. Replicating needs a command or timer context, hence the timer; and a server that replicates
 * while writes are paused (CLIENT PAUSE, a failover) ends itself. */
void registry_unregister_message(RedisModuleCtx *ctx, const char *id, size_t length) {
    if (!module_is_active_primary(ctx)) return;
    RedisModule_CreateTimer(ctx, 0, on_unregister_timer, RedisModule_CreateString(NULL, id, length));
}

/* ---- Counters ---- */

void registry_triggered(Registration *registration, int queued) {
    if (queued) {
        registration->triggered++;
    } else {
        registration->aborted++;
        if (!registration->overflowed) overflowed_count++;
        registration->overflowed = 1;
    }
}

void registry_ended(RedisModuleString *id, const JobResult *result) {
    Registration *registration = registry_find(id);
    if (!registration) return;
    if (result->status == JOB_SKIP) {
        registration->triggered -= registration->triggered > 0; /* it may have been registered anew since */
        return;
    }
    registration->last_run_us = result->run_us;
    registration->total_run_us += result->run_us;
    if (result->status != JOB_FAILED) {
        registration->succeeded++;
        return;
    }
    if (result->cause == CAUSE_ANSWERED) registration->failed++;
    else registration->aborted++;
    RedisModule_Free(registration->last_error);
    registration->last_error = RedisModule_Strdup(result->error);
}

static const JobClass ONREGISTERED = {.kind = "onregistered", .emit = emit_id, .free = free_id};

void registry_repair(RedisModuleCtx *ctx) {
    if (!overflowed_count || (long long)jobs_queued_events() * 2 > config.max_events) return;
    for (Registration *at = registrations; at; at = at->next) {
        if (!at->overflowed) continue;
        at->overflowed = 0;
        jobs_submit(ctx, &ONREGISTERED, RedisModule_CreateStringFromString(NULL, at->fields[REG_ID]),
                    config.script_timeout_ms);
    }
    overflowed_count = 0;
}

/* ---- RG.DUMPREGISTRATIONS ---- */

static void reply_pair(RedisModuleCtx *ctx, const char *name, long long value) {
    RedisModule_ReplyWithCString(ctx, name);
    RedisModule_ReplyWithLongLong(ctx, value);
}

static void reply_data(RedisModuleCtx *ctx, const Registration *registration) {
    size_t length;
    unsigned long long runs = registration->succeeded + registration->failed + registration->aborted;
    RedisModule_ReplyWithArray(ctx, 20);
    RedisModule_ReplyWithCString(ctx, "mode");
    RedisModule_ReplyWithString(ctx, registration->fields[REG_MODE]);
    reply_pair(ctx, "numTriggered", (long long)registration->triggered);
    reply_pair(ctx, "numSuccess", (long long)registration->succeeded);
    reply_pair(ctx, "numFailures", (long long)registration->failed);
    reply_pair(ctx, "numAborted", (long long)registration->aborted);
    reply_pair(ctx, "lastRunDurationMS", registration->last_run_us / 1000);
    reply_pair(ctx, "totalRunDurationMS", registration->total_run_us / 1000);
    RedisModule_ReplyWithCString(ctx, "avgRunDurationMS");
    RedisModuleString *average = RedisModule_CreateStringPrintf(
        ctx, "%.3f", runs ? (double)registration->total_run_us / 1000.0 / (double)runs : 0.0);
    RedisModule_ReplyWithString(ctx, average);
    RedisModule_FreeString(ctx, average);
    RedisModule_ReplyWithCString(ctx, "lastError");
    if (registration->last_error) RedisModule_ReplyWithCString(ctx, registration->last_error);
    else RedisModule_ReplyWithNull(ctx);
    RedisModule_ReplyWithCString(ctx, "args");
    const char *args = RedisModule_StringPtrLen(registration->fields[REG_ARGS], &length);
    resp_reply(ctx, args, length, 0);
}

int registry_dump_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    RedisModule_ReplyWithArray(ctx, (long)registration_count);
    for (Registration *at = registrations; at; at = at->next) {
        size_t length;
        RedisModule_ReplyWithArray(ctx, 12);
        RedisModule_ReplyWithCString(ctx, "id");
        RedisModule_ReplyWithString(ctx, at->fields[REG_ID]);
        RedisModule_ReplyWithCString(ctx, "reader");
        RedisModule_ReplyWithString(ctx, at->fields[REG_READER]);
        RedisModule_ReplyWithCString(ctx, "desc");
        RedisModule_StringPtrLen(at->fields[REG_DESCRIPTION], &length);
        if (length) RedisModule_ReplyWithString(ctx, at->fields[REG_DESCRIPTION]);
        else RedisModule_ReplyWithNull(ctx);
        RedisModule_ReplyWithCString(ctx, "RegistrationData");
        reply_data(ctx, at);
        RedisModule_ReplyWithCString(ctx, "PD");
        RedisModule_ReplyWithString(ctx, at->fields[REG_PRIVATE_DATA]);
        RedisModule_ReplyWithCString(ctx, "ExecutionThreadPool");
        RedisModule_ReplyWithCString(ctx, "DefaultPool");
    }
    return REDISMODULE_OK;
}

/* ---- Persistence ---- */

static void aux_save(RedisModuleIO *rdb, int when) {
    (void)when;
    RedisModule_SaveUnsigned(rdb, session_count);
    for (Session *session = sessions; session; session = session->next) {
        for (int i = 0; i < 4; i++) RedisModule_SaveString(rdb, session->fields[i]);
        RedisModule_SaveUnsigned(rdb, (uint64_t)session->count);
        for (long long i = 0; i < session->count; i++)
            for (int j = 0; j < REG_FIELDS; j++) RedisModule_SaveString(rdb, session->registrations[i]->fields[j]);
    }
}

/* With nothing to save the file stays loadable by a server without the module (where the server knows of this callback). */
static void aux_save_if_any(RedisModuleIO *rdb, int when) {
    if (session_count) aux_save(rdb, when);
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

static Session *load_session(RedisModuleIO *rdb) {
    Session *session = RedisModule_Calloc(1, sizeof *session);
    if (!load_strings(rdb, session->fields, 4)) {
        RedisModule_Free(session);
        return NULL;
    }
    uint64_t count = RedisModule_LoadUnsigned(rdb);
    if (RedisModule_IsIOError(rdb) || count > MAX_REGISTRATIONS) count = 0;
    session->registrations = RedisModule_Calloc(count + 1, sizeof *session->registrations);
    for (uint64_t i = 0; i < count; i++) {
        RedisModuleString *fields[REG_FIELDS] = {NULL};
        if (!load_strings(rdb, fields, REG_FIELDS)) break;
        session->registrations[i] = new_registration(fields);
        session->count++;
    }
    if (session->count && (uint64_t)session->count == count) return session;
    free_session(session);
    return NULL;
}

static int aux_load(RedisModuleIO *rdb, int encver, int when) {
    (void)when;
    if (encver != ENCODING_VERSION) {
        RedisModule_LogIOError(rdb, "warning", "registrations of encoding version %d cannot be read", encver);
        return REDISMODULE_ERR;
    }
    clear();
    mark_stale();
    uint64_t count = RedisModule_LoadUnsigned(rdb);
    for (uint64_t i = 0; i < count; i++) {
        Session *session = RedisModule_IsIOError(rdb) ? NULL : load_session(rdb);
        if (!session) {
            RedisModule_LogIOError(rdb, "warning", "registrations are damaged: session %llu", (unsigned long long)i);
            return REDISMODULE_ERR;
        }
        replace_session(NULL, session);
    }
    return REDISMODULE_OK;
}

/* The data set is being replaced (restart, DEBUG RELOAD, full synchronisation): so are the registrations. */
static void on_loading(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    (void)ctx;
    (void)event;
    (void)data;
    if (subevent <= REDISMODULE_SUBEVENT_LOADING_REPL_START) clear();
}

static void *no_load(RedisModuleIO *rdb, int encver) {
    (void)encver;
    RedisModule_LogIOError(rdb, "warning", "registrations are not keys");
    return NULL;
}

static void no_save(RedisModuleIO *rdb, void *value) {
    (void)rdb;
    (void)value;
}

static void no_free(void *value) { (void)value; }

int registry_on_load(RedisModuleCtx *ctx) {
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
    type = RedisModule_CreateDataType(ctx, "qa-regstr", ENCODING_VERSION, &methods);
    RedisModuleEvent loading = {REDISMODULE_EVENT_LOADING, 1};
    if (!type || RedisModule_SubscribeToServerEvent(ctx, loading, on_loading) != REDISMODULE_OK) return REDISMODULE_ERR;
    return REDISMODULE_OK;
}

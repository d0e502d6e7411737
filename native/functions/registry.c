/* Owns all sessions and registrations. Each change of a session rebuilds the data derived from the sessions: the list
 * of all registrations, their counts, the first bytes of their keys and the list of hooked commands.
 *
 * SIGNATURES. Registrations are code, and the cluster bus lets any server claim to be the primary of this one. So a
 * session in a file, in the AOF or from a primary carries a tag: a keyed BLAKE2b-256 over its fields and those of its
 * registrations, with a key of the cluster (server/bus_keys.h). A session without a valid tag is not loaded, unless
 * qa.adopt-registrations is "yes". The module makes the tags itself, so the worker does not know the key.
 *
 * No code may keep a pointer to a Registration after the current command or event. Longer-lived data refers to a
 * registration by its id. The worker does not know sessions that arrive by replication or from a file until it reads
 * them. `stale_since_ms` says since when; the supervisor replaces a worker that has not read them after a while. */
#include "functions/registry.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "functions/hooked_commands.h"
#include "server/args.h"
#include "server/blake2b.h"
#include "server/bus_keys.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/links.h"
#include "server/resp.h"
#include "server/server.h"

typedef struct Session {
    RedisModuleString *fields[4]; /* session, description, source, payload */
    Registration **registrations;
    long long count;
    struct Session *next;
} Session;

enum {
    ENCODING_VERSION = 5,
    UNSIGNED_VERSION = 4,
    TAG_BYTES = 32,
    MAX_REGISTRATIONS = 10000,
    MAX_COST_FROM = 65536,
    PAUSED_RETRY_MS = 100
};

static Session *sessions;
static Registration *registrations;
static size_t session_count, registration_count, stream_count;
static unsigned char first_bytes[256 / 8]; /* of the prefixes of KeysReader registrations */
static int any_keys;                       /* 1: there is a KeysReader registration */
static RedisModuleType *type;
static long long stale_since_ms; /* 0: the worker knows the sessions */
static long long generation = 1; /* grows when the reply to QA.REGISTRATIONS changes */
static const RegistryTombstones *tombstones;
static unsigned long long refused, adopted; /* sessions without a valid signature */

void registry_attach(const RegistryTombstones *to) { tombstones = to; }

static void mark_stale(void) { stale_since_ms = RedisModule_Milliseconds(); }
void registry_forget_stale(void) { stale_since_ms = 0; }
long long registry_stale_ms(void) { return stale_since_ms ? RedisModule_Milliseconds() - stale_since_ms + 1 : 0; }

void registry_changed(void) { generation++; }

Registration *registry_first(void) { return registrations; }
size_t registry_sessions(void) { return session_count; }
size_t registry_registrations(void) { return registration_count; }
size_t registry_streams(void) { return stream_count; }
unsigned long long registry_refused(void) { return refused; }
int registry_any_keys(void) { return any_keys; }

static int same(RedisModuleString *a, RedisModuleString *b) { return RedisModule_StringCompare(a, b) == 0; }

Registration *registry_find(RedisModuleString *id) {
    for (Registration *at = registrations; at; at = at->next)
        if (same(at->fields[REG_ID], id)) return at;
    return NULL;
}

Registration *registry_find_trigger(RedisModuleString *trigger) {
    for (Registration *at = registrations; at; at = at->next)
        if (at->source == SOURCE_COMMAND && same(at->fields[REG_MATCH], trigger)) return at;
    return NULL;
}

/* ---- Matching ---- */

int registry_may_match_key(const char *key, size_t length) {
    unsigned char first = length ? (unsigned char)*key : 0;
    return any_keys && (first_bytes[first / 8] >> (first % 8) & 1);
}

int registration_matches_key(const Registration *registration, const char *key, size_t length) {
    if (registration->match_exact ? length != registration->match_length : length < registration->match_length)
        return 0;
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
    RedisModule_Free(registration->counters.last_error);
    RedisModule_Free(registration);
}

static void free_session(Session *session) {
    for (int i = 0; i < 4; i++)
        if (session->fields[i]) RedisModule_FreeString(NULL, session->fields[i]);
    for (long long i = 0; i < session->count; i++) free_registration(session->registrations[i]);
    RedisModule_Free(session->registrations);
    RedisModule_Free(session);
}

/* The number that follows `name` in the `args` array, or `preset`. */
static long long number_of(RedisModuleString *args, const char *name, long long preset) {
    RespReader reader;
    RespToken token;
    size_t length, name_length = strlen(name);
    reader.at = RedisModule_StringPtrLen(args, &length);
    reader.end = reader.at + length;
    while (resp_next(&reader, &token, 0) == 1)
        if (token.type == '$' && !token.null && token.length == name_length && !memcmp(token.text, name, name_length))
            return resp_next(&reader, &token, 0) == 1 && token.type == ':' ? token.integer : preset;
    return preset;
}

/* Takes over the strings of `fields`. */
static Registration *new_registration(RedisModuleString **fields) {
    long long cost_from;
    Registration *registration = RedisModule_Calloc(1, sizeof *registration);
    memcpy(registration->fields, fields, sizeof registration->fields);
    const char *name = RedisModule_StringPtrLen(fields[REG_SOURCE], NULL);
    registration->source = !strcmp(name, "KeysReader")     ? SOURCE_KEYS
                           : !strcmp(name, "StreamReader") ? SOURCE_STREAM
                                                           : SOURCE_COMMAND;
    registration->match = RedisModule_StringPtrLen(fields[REG_MATCH], &registration->match_length);
    registration->match_exact = 1;
    registration->own = !strcmp(RedisModule_StringPtrLen(fields[REG_CLASS], NULL), "own");
    registration->cost_from = arg_count(fields[REG_COST_FROM], MAX_COST_FROM, &cost_from) ? (int)cost_from : 0;
    if (registration->source == SOURCE_COMMAND) {
        registration->in_order = number_of(fields[REG_ARGS], "inorder", 0) != 0;
        registration->timeout_ms = number_of(fields[REG_ARGS], "timeout", 0);
    } else if (registration->match_length && registration->match[registration->match_length - 1] == '*') {
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
static RedisModuleString *check_mode(RedisModuleString *mode) {
    const char *text = RedisModule_StringPtrLen(mode, NULL);
    if (!strcmp(text, "sync"))
        return RedisModule_CreateStringPrintf(
            NULL, "ERR mode sync is left out: functions run outside the server, use async_local");
    if (!is_one_of(mode, "async", "async_local", NULL))
        return RedisModule_CreateStringPrintf(NULL, "ERR unknown mode: %.100s, expected async or async_local", text);
    return NULL;
}

/* NULL, or an error (to be freed). */
static RedisModuleString *check_class(RedisModuleString *const *fields) {
    long long cost_from;
    if (!is_one_of(fields[REG_CLASS], "own", "user", NULL))
        return RedisModule_CreateStringPrintf(NULL, "ERR unknown class: %.100s, expected own or user",
                                              RedisModule_StringPtrLen(fields[REG_CLASS], NULL));
    if (!arg_count(fields[REG_COST_FROM], MAX_COST_FROM, &cost_from))
        return RedisModule_CreateStringPrintf(NULL, "ERR cost_from must be between 0 and %d, got %.100s", MAX_COST_FROM,
                                              RedisModule_StringPtrLen(fields[REG_COST_FROM], NULL));
    return NULL;
}

/* NULL, or an error (to be freed). */
static RedisModuleString *check_registration(RedisModuleCtx *ctx, const Registration *registration) {
    RedisModuleString *const *fields = registration->fields;
    size_t length;
    if (!is_one_of(fields[REG_SOURCE], "KeysReader", "CommandReader", "StreamReader"))
        return RedisModule_CreateStringPrintf(
            NULL, "ERR unknown reader: %.100s, expected KeysReader, CommandReader or StreamReader",
            RedisModule_StringPtrLen(fields[REG_SOURCE], NULL));
    RedisModuleString *error = check_mode(fields[REG_MODE]);
    if (!error) error = check_class(fields);
    if (error) return error;
    const char *args = RedisModule_StringPtrLen(fields[REG_ARGS], &length);
    if (!resp_valid(args, length, 0))
        return RedisModule_CreateStringPrintf(NULL, "ERR args of a registration is not RESP");
    const char *events = RedisModule_StringPtrLen(fields[REG_EVENTS], &length);
    if (registration->source == SOURCE_STREAM && length && strcmp(events, "xadd"))
        return RedisModule_CreateStringPrintf(NULL, "ERR a StreamReader is called for xadd only, not for: %.100s",
                                              events);
    RedisModule_StringPtrLen(fields[REG_COMMANDS], &length);
    if (!length) return NULL;
    if (registration->source != SOURCE_KEYS || !registration_list_has(fields[REG_EVENTS], "keymiss", 7))
        return RedisModule_CreateStringPrintf(NULL, "ERR Can not hook a command without the keymiss event");
    return hooked_commands_check(ctx, fields[REG_COMMANDS]);
}

static int same_trigger(const Registration *a, const Registration *b) {
    return a->source == SOURCE_COMMAND && b->source == SOURCE_COMMAND &&
           same(a->fields[REG_MATCH], b->fields[REG_MATCH]);
}

/* NULL, or an error (to be freed): both have the same id or the same trigger. */
static RedisModuleString *check_conflict(const Registration *mine, const Registration *other) {
    if (same(other->fields[REG_ID], mine->fields[REG_ID]))
        return RedisModule_CreateStringPrintf(NULL, "ERR registration id is taken: %.100s",
                                              RedisModule_StringPtrLen(mine->fields[REG_ID], NULL));
    if (same_trigger(mine, other))
        return RedisModule_CreateStringPrintf(NULL, "ERR trigger already registered: %.200s", mine->match);
    return NULL;
}

/* Compares the registrations of the session with each other and with those of all sessions but `old`. */
static RedisModuleString *check_conflicts(const Session *session, const Session *old) {
    RedisModuleString *error = NULL;
    for (long long i = 0; i < session->count && !error; i++) {
        const Registration *mine = session->registrations[i];
        for (const Session *at = sessions; at; at = at->next)
            for (long long j = 0; at != old && j < at->count && !error; j++)
                error = check_conflict(mine, at->registrations[j]);
        for (long long j = 0; j < i && !error; j++) error = check_conflict(mine, session->registrations[j]);
    }
    return error;
}

static Session *find_session(RedisModuleString *name) {
    for (Session *at = sessions; at; at = at->next)
        if (same(at->fields[0], name)) return at;
    return NULL;
}

static void index_keys(const Registration *registration) {
    any_keys = 1;
    if (registration->match_length) {
        unsigned char first = (unsigned char)*registration->match;
        first_bytes[first / 8] |= (unsigned char)(1 << (first % 8));
    } else {
        memset(first_bytes, 0xff, sizeof first_bytes);
    }
    hooked_commands_add(registration->fields[REG_COMMANDS]);
}

/* Rebuilds the data derived from the list of sessions. */
static void index_sessions(void) {
    Registration **end = &registrations;
    session_count = registration_count = stream_count = 0;
    for (Session *session = sessions; session; session = session->next) {
        session_count++;
        for (long long i = 0; i < session->count; i++) {
            *end = session->registrations[i];
            end = &(*end)->next;
            registration_count++;
            stream_count += session->registrations[i]->source == SOURCE_STREAM;
        }
    }
    *end = NULL;
    any_keys = 0;
    memset(first_bytes, 0, sizeof first_bytes);
    hooked_commands_clear();
    for (const Registration *at = registrations; at; at = at->next)
        if (at->source == SOURCE_KEYS) index_keys(at);
    registry_changed();
}

/* A registration that keeps its id keeps its state and its counters. */
static void keep_counters(Session *session, Session *old) {
    for (long long i = 0; i < session->count; i++) {
        Registration *now = session->registrations[i];
        for (long long j = 0; j < old->count; j++) {
            Registration *then = old->registrations[j];
            if (!same(now->fields[REG_ID], then->fields[REG_ID])) continue;
            now->overflowed = then->overflowed;
            now->paused = then->paused;
            now->pause_order = then->pause_order;
            now->status = then->status;
            now->counters = then->counters;
            then->counters.last_error = NULL;
        }
    }
}

/* Replaces `old` by `session`. If `old` is NULL, it adds `session` at the end. If `session` is NULL, it removes
 * `old`. */
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
    tombstones->clear();
}

/* NULL, or an error (to be freed): a removed registration must not return. */
static RedisModuleString *check_tombstones(const Session *session) {
    for (long long i = 0; i < session->count; i++) {
        RedisModuleString *id = session->registrations[i]->fields[REG_ID];
        if (tombstones->has(id))
            return RedisModule_CreateStringPrintf(NULL, "UNREGISTERED registration has been unregistered: %.100s",
                                                  RedisModule_StringPtrLen(id, NULL));
    }
    return NULL;
}

/* ---- Signatures ---- */

static void add_field(Blake2b *hash, RedisModuleString *field) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(field, &length);
    uint64_t size = length;
    blake2b_add(hash, &size, sizeof size);
    blake2b_add(hash, text, length);
}

/* Computes the tag with the key of this index. 0: there is no such key. */
static int make_tag(uint8_t *tag, int key, const Session *session) {
    uint8_t secret[BUS_KEY_BYTES];
    Blake2b hash;
    if (!bus_secret(key, "qa-cluster stored registrations", secret)) return 0;
    blake2b_begin(&hash, TAG_BYTES, secret, sizeof secret);
    for (int i = 0; i < 4; i++) add_field(&hash, session->fields[i]);
    for (long long i = 0; i < session->count; i++)
        for (int j = 0; j < REG_FIELDS; j++) add_field(&hash, session->registrations[i]->fields[j]);
    blake2b_end(&hash, tag);
    explicit_bzero(secret, sizeof secret);
    return 1;
}

/* The tag of a session for a file or a replica; empty if this server has no key. */
static RedisModuleString *sign(const Session *session) {
    uint8_t tag[TAG_BYTES];
    return RedisModule_CreateString(NULL, (const char *)tag, make_tag(tag, 0, session) ? TAG_BYTES : 0);
}

/* `tag` may be NULL. */
static int is_signed(const Session *session, RedisModuleString *tag) {
    size_t length = 0;
    const char *given = tag ? RedisModule_StringPtrLen(tag, &length) : NULL;
    uint8_t expected[TAG_BYTES];
    for (int i = 0; length == TAG_BYTES && make_tag(expected, i, session); i++)
        if (blake2b_equal(expected, (const uint8_t *)given, TAG_BYTES)) return 1;
    return 0;
}

/* 1: the session of a file, of the AOF or of a primary may be loaded. The log names it otherwise. */
static int is_trusted(const Session *session, RedisModuleString *tag) {
    if (is_signed(session, tag)) return 1;
    int adopt = !strcmp(config.adopt_registrations, "yes");
    char name[65];
    size_t length;
    const char *text = RedisModule_StringPtrLen(session->fields[0], &length), *why;
    snprintf(name, sizeof name, "%.*s", (int)(length < 64 ? length : 64), text);
    for (char *at = name; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    why = tag ? "their signature is not from a key of this cluster" : "they are not signed";
    adopted += adopt;
    refused += !adopt;
    RedisModule_Log(server_ctx(), "warning",
                    adopt ? "the %lld registrations of session %s were adopted (qa.adopt-registrations), although %s"
                          : "the %lld registrations of session %s were not loaded, because %s; if you trust the data, "
                            "start the server once with qa.adopt-registrations yes (docs/upgrade.md)",
                    session->count, name, why);
    return adopt;
}

/* ---- QA.REGISTER, QA.SESSIONS, QA.REGISTRATIONS ---- */

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

/* A primary repeats its sessions after an AOF rewrite. Unchanged sessions need no new worker. */
static int is_unchanged(const Session *old, const Session *session) {
    if (!old || !session || old->count != session->count) return 0;
    for (int i = 0; i < 4; i++)
        if (!same(old->fields[i], session->fields[i])) return 0;
    for (long long i = 0; i < session->count; i++)
        for (int j = 0; j < REG_FIELDS; j++)
            if (!same(old->registrations[i]->fields[j], session->registrations[i]->fields[j])) return 0;
    return 1;
}

static int QA_REGISTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long count;
    if (!caller_is_log(ctx) && !link_require(ctx, "QA.REGISTER")) return REDISMODULE_OK;
    if (argc < 6) return RedisModule_WrongArity(ctx);
    int is_log = caller_is_log(ctx), known = RedisModule_StringToLongLong(argv[5], &count) == REDISMODULE_OK;
    /* A primary adds the tag as the last argument. */
    int tagged = is_log && known && argc == 6 + count * REG_FIELDS + 1;
    if (!known || count < 0 || count > MAX_REGISTRATIONS || argc != 6 + count * REG_FIELDS + tagged)
        return RedisModule_ReplyWithError(ctx, "ERR count of registrations does not match the number of arguments");
    Session *old = find_session(argv[1]), *session = count ? parse_session(argv, count) : NULL;
    if (is_log && session && !is_trusted(session, tagged ? argv[argc - 1] : NULL)) {
        free_session(session);
        return RedisModule_ReplyWithSimpleString(ctx, "OK"); /* an error would be one of replication */
    }
    RedisModuleString *error = NULL;
    for (long long i = 0; session && !error && i < count; i++)
        error = check_registration(ctx, session->registrations[i]);
    if (session && !error) error = check_conflicts(session, old);
    if (session && !error && !is_log) error = check_tombstones(session);
    if (error) {
        RedisModule_ReplyWithError(ctx, RedisModule_StringPtrLen(error, NULL));
        RedisModule_FreeString(NULL, error);
        free_session(session);
        return REDISMODULE_OK;
    }
    RedisModuleString *tag = session && !is_log ? sign(session) : NULL;
    if (is_log && is_unchanged(old, session)) {
        free_session(session);
    } else {
        replace_session(old, session);
        if (is_log) mark_stale();
    }
    if (tag) {
        RedisModule_Replicate(ctx, "QA.REGISTER", "vs", argv + 1, (size_t)argc - 1, tag);
        RedisModule_FreeString(NULL, tag);
    } else {
        RedisModule_ReplicateVerbatim(ctx);
    }
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

static int QA_SESSIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    if (!link_require(ctx, "QA.SESSIONS")) return REDISMODULE_OK;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    registry_forget_stale();
    RedisModule_ReplyWithArray(ctx, (long)session_count);
    for (Session *session = sessions; session; session = session->next) {
        RedisModule_ReplyWithArray(ctx, (long)(4 + session->count));
        for (int i = 0; i < 4; i++) RedisModule_ReplyWithString(ctx, session->fields[i]);
        for (long long i = 0; i < session->count; i++)
            RedisModule_ReplyWithString(ctx, session->registrations[i]->fields[REG_ID]);
    }
    return REDISMODULE_OK;
}

static int QA_REGISTRATIONS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long known;
    if (!link_require(ctx, "QA.REGISTRATIONS")) return REDISMODULE_OK;
    if (argc != 2) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &known) != REDISMODULE_OK)
        return RedisModule_ReplyWithError(ctx, "ERR generation is not an integer");
    if (!server_is_active_primary(ctx)) { /* only primaries compare their registrations */
        RedisModule_ReplyWithArray(ctx, 1);
        return RedisModule_ReplyWithLongLong(ctx, 0);
    }
    if (known == generation) return RedisModule_ReplyWithNull(ctx);
    RedisModule_ReplyWithArray(ctx, (long)(1 + 3 * registration_count));
    RedisModule_ReplyWithLongLong(ctx, generation);
    for (const Session *session = sessions; session; session = session->next) {
        for (long long i = 0; i < session->count; i++) {
            RedisModule_ReplyWithString(ctx, session->fields[0]);
            RedisModule_ReplyWithString(ctx, session->registrations[i]->fields[REG_ID]);
            RedisModule_ReplyWithLongLong(ctx, session->registrations[i]->pause_order);
        }
    }
    return REDISMODULE_OK;
}

/* ---- Removing one ---- */

int registry_remove(RedisModuleString *id) {
    for (Session *session = sessions; session; session = session->next) {
        for (long long i = 0; i < session->count; i++) {
            Registration *registration = session->registrations[i];
            if (!same(registration->fields[REG_ID], id)) continue;
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

/* ---- Persistence ---- */

enum { SAVED_RUNNING, SAVED_PAUSED, SAVED_ABORTED }; /* stored in RDB files: never renumber */

static void save_status(RedisModuleIO *rdb, const Registration *registration) {
    int aborted = registration->status == STREAM_ABORTED;
    RedisModule_SaveUnsigned(rdb, registration->paused ? SAVED_PAUSED : aborted ? SAVED_ABORTED : SAVED_RUNNING);
    RedisModule_SaveUnsigned(rdb, (uint64_t)registration->pause_order);
}

/* 0: the file is damaged. */
static int load_status(RedisModuleIO *rdb, Registration *registration) {
    uint64_t saved = RedisModule_LoadUnsigned(rdb);
    registration->paused = saved == SAVED_PAUSED;
    registration->status = saved == SAVED_ABORTED ? STREAM_ABORTED : STREAM_OK;
    uint64_t order = RedisModule_LoadUnsigned(rdb);
    registration->pause_order = order > MAX_PAUSE_ORDER ? 0 : (long long)order;
    return order <= MAX_PAUSE_ORDER;
}

static void aux_save(RedisModuleIO *rdb, int when) {
    (void)when;
    RedisModule_SaveUnsigned(rdb, session_count);
    for (Session *session = sessions; session; session = session->next) {
        for (int i = 0; i < 4; i++) RedisModule_SaveString(rdb, session->fields[i]);
        RedisModule_SaveUnsigned(rdb, (uint64_t)session->count);
        for (long long i = 0; i < session->count; i++) {
            for (int j = 0; j < REG_FIELDS; j++) RedisModule_SaveString(rdb, session->registrations[i]->fields[j]);
            save_status(rdb, session->registrations[i]);
        }
        RedisModuleString *tag = sign(session);
        RedisModule_SaveString(rdb, tag);
        RedisModule_FreeString(NULL, tag);
    }
    tombstones->save(rdb);
}

/* If it saves nothing, a server without the module can load the file. Old servers do not know this callback. */
static void aux_save_if_any(RedisModuleIO *rdb, int when) {
    if (session_count || tombstones->count()) aux_save(rdb, when);
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

/* 0: the file is damaged. */
static int load_registration(RedisModuleIO *rdb, Session *session) {
    RedisModuleString *fields[REG_FIELDS] = {NULL};
    if (!load_strings(rdb, fields, REG_FIELDS)) return 0;
    Registration *registration = new_registration(fields);
    session->registrations[session->count++] = registration;
    if (!load_status(rdb, registration) || RedisModule_IsIOError(rdb)) return 0;
    RedisModuleString *error = check_class(fields);
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
    free_session(session);
    return NULL;
}

/* Loads the tag of a session, and adds the session if it is trusted. 0: the file is damaged. */
static int load_trusted(RedisModuleIO *rdb, int encver, Session *session) {
    RedisModuleString *tag = NULL;
    if (encver >= ENCODING_VERSION && !load_strings(rdb, &tag, 1)) {
        free_session(session);
        return 0;
    }
    if (is_trusted(session, tag)) replace_session(NULL, session);
    else free_session(session);
    if (tag) RedisModule_FreeString(NULL, tag);
    return 1;
}

static int aux_load(RedisModuleIO *rdb, int encver, int when) {
    (void)when;
    if (encver != ENCODING_VERSION && encver != UNSIGNED_VERSION) {
        RedisModule_LogIOError(rdb, "warning", "registrations have encoding version %d, this module reads version %d",
                               encver, ENCODING_VERSION);
        return REDISMODULE_ERR;
    }
    clear();
    mark_stale();
    uint64_t count = RedisModule_LoadUnsigned(rdb);
    for (uint64_t i = 0; i < count; i++) {
        Session *session = RedisModule_IsIOError(rdb) ? NULL : load_session(rdb);
        if (!session || !load_trusted(rdb, encver, session)) {
            RedisModule_LogIOError(rdb, "warning", "registrations are damaged: session %llu", (unsigned long long)i);
            return REDISMODULE_ERR;
        }
    }
    if (!tombstones->load(rdb)) {
        RedisModule_LogIOError(rdb, "warning", "registrations are damaged: tombstones");
        return REDISMODULE_ERR;
    }
    return REDISMODULE_OK;
}

/* The AOF has the adopted sessions without a tag, until it is rewritten. */
static void on_adopted(RedisModuleCtx *ctx, void *data) {
    (void)data;
    if (!server_setting_is(ctx, "appendonly", "yes")) return;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "BGREWRITEAOF", "");
    if (reply) RedisModule_FreeCallReply(reply);
}

/* Loading a data set (restart, DEBUG RELOAD, full synchronization) also replaces the registrations. */
static void on_loading(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    (void)event;
    (void)data;
    if (subevent == REDISMODULE_SUBEVENT_LOADING_ENDED && adopted) {
        adopted = 0;
        RedisModule_CreateTimer(ctx, 0, on_adopted, NULL);
    }
    if (subevent > REDISMODULE_SUBEVENT_LOADING_REPL_START) return;
    if (sessions) mark_stale();
    clear();
}

/* ---- Rewriting the AOF as commands (aof-use-rdb-preamble no) ---- */

static void replicate_session(RedisModuleCtx *ctx, const Session *session) {
    size_t count = 0;
    RedisModuleString **argv = RedisModule_Alloc((6 + (size_t)session->count * REG_FIELDS) * sizeof *argv);
    for (int i = 0; i < 4; i++) argv[count++] = session->fields[i];
    argv[count++] = RedisModule_CreateStringFromLongLong(NULL, session->count);
    for (long long i = 0; i < session->count; i++)
        for (int j = 0; j < REG_FIELDS; j++) argv[count++] = session->registrations[i]->fields[j];
    RedisModuleString *tag = argv[count++] = sign(session);
    RedisModule_Replicate(ctx, "QA.REGISTER", "v", argv, count);
    RedisModule_FreeString(NULL, tag);
    for (long long i = 0; i < session->count; i++) {
        const Registration *registration = session->registrations[i];
        if (registration->pause_order)
            RedisModule_Replicate(ctx, "QA.PAUSE", "sl", registration->fields[REG_ID], registration->pause_order);
        if (registration->status == STREAM_ABORTED)
            RedisModule_Replicate(ctx, "QA.STREAM", "sc", registration->fields[REG_ID], "ABORTED");
        if (registration->paused && !(registration->pause_order & 1)) /* its function paused it on this shard */
            RedisModule_Replicate(ctx, "QA.STREAM", "sc", registration->fields[REG_ID], "PAUSED");
    }
    RedisModule_FreeString(NULL, argv[4]);
    RedisModule_Free(argv);
}

static void on_fork_timer(RedisModuleCtx *ctx, void *data) {
    (void)data;
    if ((!session_count && !tombstones->count()) || !server_is_active_primary(ctx) ||
        !server_setting_is(ctx, "aof-use-rdb-preamble", "no"))
        return;
    if (RedisModule_AvoidReplicaTraffic()) {
        RedisModule_CreateTimer(ctx, PAUSED_RETRY_MS, on_fork_timer, NULL);
        return;
    }
    for (Session *session = sessions; session; session = session->next) replicate_session(ctx, session);
    tombstones->replicate(ctx);
}

/* An AOF rewrite writes only keys. The registrations go into the new file that starts after the fork. */
static void on_fork(RedisModuleCtx *ctx, RedisModuleEvent event, uint64_t subevent, void *data) {
    (void)event;
    (void)data;
    if (subevent == REDISMODULE_SUBEVENT_FORK_CHILD_BORN) RedisModule_CreateTimer(ctx, 0, on_fork_timer, NULL);
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
    static const CommandSpec COMMANDS[] = {
        {"qa.register", QA_REGISTER_RedisCommand, LINK_COMMAND_FLAGS " write", 0, 0, 0, "admin dangerous write"},
        {"qa.sessions", QA_SESSIONS_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.registrations", QA_REGISTRATIONS_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
    };
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
    RedisModuleEvent fork = {REDISMODULE_EVENT_FORK_CHILD, 1};
    if (!type || RedisModule_SubscribeToServerEvent(ctx, loading, on_loading) != REDISMODULE_OK ||
        RedisModule_SubscribeToServerEvent(ctx, fork, on_fork) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

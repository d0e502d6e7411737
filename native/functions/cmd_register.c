/* QA.REGISTER stores a session, the registrations of one script (session.h). QA.SESSIONS and QA.REGISTRATIONS list the
 * sessions and registrations of the server. Of all clients, only the worker may call these commands. The server also
 * gets QA.REGISTER from the AOF and from its primary. If such a QA.REGISTER contains registrations, it must contain a
 * valid tag (session.h), a signature that the module has added when it replicated the worker's command. */
#include "functions/registry.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/links.h"
#include "server/server.h"

static Session *parse_session(RedisModuleString **argv, long long count) {
    Session *session = RedisModule_Calloc(1, sizeof *session);
    for (int i = 0; i < SESSION_FIELDS; i++) session->fields[i] = RedisModule_CreateStringFromString(NULL, argv[1 + i]);
    session->count = count;
    session->registrations = RedisModule_Calloc((size_t)count + 1, sizeof *session->registrations);
    for (long long i = 0; i < count; i++) {
        RedisModuleString *fields[REG_FIELDS];
        for (int j = 0; j < REG_FIELDS; j++)
            fields[j] = RedisModule_CreateStringFromString(NULL, argv[6 + i * REG_FIELDS + j]);
        session->registrations[i] = registration_new(fields);
    }
    return session;
}

/* 1: both sessions are equal. After an AOF rewrite, a primary sends its sessions again. The module ignores an unchanged
 * session, because after a change from a primary the module may have to replace the worker (registry_mark_stale). */
static int is_unchanged(const Session *old, const Session *session) {
    if (!old || !session || old->count != session->count) return 0;
    for (int i = 0; i < SESSION_FIELDS; i++)
        if (!registration_same(old->fields[i], session->fields[i])) return 0;
    for (long long i = 0; i < session->count; i++)
        for (int j = 0; j < REG_FIELDS; j++)
            if (!registration_same(old->registrations[i]->fields[j], session->registrations[i]->fields[j])) return 0;
    return 1;
}

static int QA_REGISTER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long count;
    if (!caller_is_log(ctx) && !link_require(ctx, "QA.REGISTER")) return REDISMODULE_OK;
    if (argc < 6) return RedisModule_WrongArity(ctx);
    int is_log = caller_is_log(ctx), known = RedisModule_StringToLongLong(argv[5], &count) == REDISMODULE_OK;
    known = known && count >= 0 && count <= MAX_REGISTRATIONS;
    /* A primary adds the tag as the last argument. */
    int tagged = is_log && known && argc == 6 + count * REG_FIELDS + 1;
    if (!known || argc != 6 + count * REG_FIELDS + tagged)
        return RedisModule_ReplyWithError(ctx, "ERR count of registrations does not match the number of arguments");
    Session *old = registry_find_session(argv[1]), *session = count ? parse_session(argv, count) : NULL;
    if (is_log && session && !session_is_trusted(session, tagged ? argv[argc - 1] : NULL)) {
        session_free(session);
        /* The reply is +OK although the module has refused the session, because the server would report an error reply
         * as a failed replication. */
        return RedisModule_ReplyWithSimpleString(ctx, "OK");
    }
    RedisModuleString *error = NULL;
    for (long long i = 0; session && !error && i < count; i++)
        error = registration_check(ctx, session->registrations[i]);
    if (session && !error) error = registry_check_conflicts(session, old);
    if (session && !error && !is_log) error = registry_check_tombstones(session);
    if (error) {
        RedisModule_ReplyWithError(ctx, RedisModule_StringPtrLen(error, NULL));
        RedisModule_FreeString(NULL, error);
        session_free(session);
        return REDISMODULE_OK;
    }
    RedisModuleString *tag = session && !is_log ? session_sign(session) : NULL;
    if (is_log && is_unchanged(old, session)) {
        session_free(session);
    } else {
        registry_replace_session(old, session);
        if (is_log) registry_mark_stale();
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
    if (!link_require(ctx, "QA.SESSIONS")) return REDISMODULE_OK;
    if (argc != 1) return RedisModule_WrongArity(ctx);
    registry_forget_stale();
    RedisModule_ReplyWithArray(ctx, (long)registry_sessions());
    for (Session *session = registry_first_session(); session; session = session->next) {
        RedisModule_ReplyWithArray(ctx, (long)(4 + session->count));
        for (int i = 0; i < SESSION_FIELDS; i++) RedisModule_ReplyWithString(ctx, session->fields[i]);
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
    if (known == registry_generation()) return RedisModule_ReplyWithNull(ctx);
    RedisModule_ReplyWithArray(ctx, (long)(1 + 3 * registry_registrations()));
    RedisModule_ReplyWithLongLong(ctx, registry_generation());
    for (const Session *session = registry_first_session(); session; session = session->next) {
        for (long long i = 0; i < session->count; i++) {
            RedisModule_ReplyWithString(ctx, session->fields[SESSION_NAME]);
            RedisModule_ReplyWithString(ctx, session->registrations[i]->fields[REG_ID]);
            RedisModule_ReplyWithLongLong(ctx, session->registrations[i]->pause_order);
        }
    }
    return REDISMODULE_OK;
}

int register_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"qa.register", QA_REGISTER_RedisCommand, LINK_COMMAND_FLAGS " write", 0, 0, 0, "admin dangerous write"},
        {"qa.sessions", QA_SESSIONS_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
        {"qa.registrations", QA_REGISTRATIONS_RedisCommand, LINK_COMMAND_FLAGS, 0, 0, 0, "admin dangerous"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

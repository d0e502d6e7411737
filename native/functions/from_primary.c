/* How the module recognizes the primary depends on the server:
 * - On Redis 7.2 and later and on Valkey, the primary is the only client without a user, which the filter can see.
 * - On Redis 7.0, the filter does not learn which client sent the command. So on a replica, the filter puts
 *   RG.FROMPRIMARY before each listed subcommand (REFUSED), for any client. RG.FROMPRIMARY refuses the primary, and
 *   runs the command of another client with the client's rights. So an administrator of a replica also needs the right
 *   to run rg.fromprimary. Lua scripts cannot run the listed subcommands.
 * The module's own commands refuse the primary themselves (caller_require_admin). */
#include "functions/from_primary.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "server/bus_keys.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/server.h"

/* Commands that change rights or settings, run code, or connect to other servers. The list may contain EVAL and similar
 * commands, because Redis 7.0 and later never replicate a script, only the writes of the script. */
typedef struct Refused {
    const char *name;
    /* On Redis 7.0, the module refuses only these subcommands of the command; {NULL}: it refuses nothing. On other
     * servers, the module refuses the command with all its subcommands. */
    const char *subcommands[4];
} Refused;

static const Refused REFUSED[] = {
    {"auth", {NULL}},
    {"hello", {NULL}},
    {"acl", {"setuser", "deluser", "load", "save"}},
    {"config", {"set", "rewrite", NULL, NULL}},
    {"module", {NULL}},
    {"debug", {NULL}},
    {"eval", {NULL}},
    {"evalsha", {NULL}},
    {"eval_ro", {NULL}},
    {"evalsha_ro", {NULL}},
    {"fcall", {NULL}},
    {"fcall_ro", {NULL}},
    {"script", {NULL}},
    {"cluster", {NULL}},
    {"migrate", {NULL}},
    {"replicaof", {NULL}},
    {"slaveof", {NULL}},
    {"shutdown", {NULL}},
};

static const char COMMAND[] = "RG.FROMPRIMARY";

static const Refused *find_refused(const RedisModuleString *name) {
    const char *text = RedisModule_StringPtrLen(name, NULL);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++)
        if ((*text | 32) == *REFUSED[i].name && !strcasecmp(text, REFUSED[i].name)) return &REFUSED[i];
    return NULL;
}

static int is_primary_client(RedisModuleCommandFilterCtx *filter) {
    errno = 0;
    RedisModuleString *user = RedisModule_GetClientUserNameById(server_ctx(),
                                                                RedisModule_CommandFilterGetClientId(filter));
    if (user) RedisModule_FreeString(server_ctx(), user);
    return !user && errno == ENOTSUP; /* ENOTSUP: the client has no user; ENOENT: the client of a script or of the
                                       * AOF */
}

static int has_subcommand(const Refused *refused, RedisModuleCommandFilterCtx *filter) {
    if (RedisModule_CommandFilterArgsCount(filter) < 2) return 0;
    const char *given = RedisModule_StringPtrLen(RedisModule_CommandFilterArgGet(filter, 1), NULL);
    for (int i = 0; i < 4 && refused->subcommands[i]; i++)
        if (!strcasecmp(given, refused->subcommands[i])) return 1;
    return 0;
}

int from_primary_guard(RedisModuleCommandFilterCtx *filter) {
    const Refused *refused = find_refused(RedisModule_CommandFilterArgGet(filter, 0));
    if (!refused || !(RedisModule_GetContextFlags(server_ctx()) & REDISMODULE_CTX_FLAGS_SLAVE)) return 0;
    if (RedisModule_CommandFilterGetClientId ? !is_primary_client(filter) : !has_subcommand(refused, filter)) return 0;
    RedisModule_CommandFilterArgInsert(filter, 0, RedisModule_CreateString(NULL, COMMAND, sizeof COMMAND - 1));
    return 1;
}

/* Runs the command with the rights of the client that sent it, and replies. */
static void run(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    RedisModuleString *name = caller_name(ctx);
    RedisModuleUser *user = name ? RedisModule_GetModuleUserFromUserName(name) : NULL;
    RedisModuleCallReply *reply = NULL;
    if (user && RedisModule_ACLCheckCommandPermissions(user, argv, argc) == REDISMODULE_OK)
        reply = RedisModule_Call(ctx, RedisModule_StringPtrLen(argv[0], NULL), "0Ev", argv + 1, (size_t)argc - 1);
    if (reply) RedisModule_ReplyWithCallReply(ctx, reply);
    else RedisModule_ReplyWithError(ctx, "NOPERM this user has no permissions to run this command");
    if (reply) RedisModule_FreeCallReply(reply);
    if (user) RedisModule_FreeModuleUser(user);
    if (name) RedisModule_FreeString(ctx, name);
}

static int RG_FROMPRIMARY_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    const Refused *refused = find_refused(argv[1]);
    if (!refused) return RedisModule_ReplyWithError(ctx, "ERR RG.FROMPRIMARY runs only commands that it may refuse");
    if (!(RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_REPLICATED)) {
        if (RedisModule_CommandFilterGetClientId || !refused->subcommands[0])
            return RedisModule_ReplyWithError(ctx, "ERR RG.FROMPRIMARY is only for the command filter");
        run(ctx, argv + 1, argc - 1);
        return REDISMODULE_OK;
    }
    bus_complain("refused the command %s of this server's primary, because replication never contains this command; "
                 "the primary may be hostile (docs/operations.md)",
                 refused->name);
    /* The reply is +OK although the command was refused, because the server would report an error reply as a failed
     * replication. */
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int from_primary_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.fromprimary", RG_FROMPRIMARY_RedisCommand, "admin allow-stale no-slowlog no-monitor", 0, 0, 0,
         "admin dangerous slow"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

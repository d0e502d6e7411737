/* The rights of the user are checked twice: the module checks the rights first, and RedisModule_Call checks the rights
 * again. The module looks up the user by name for every command and keeps no copy. So a revoked right has an effect at
 * once. */
#include "functions/calling.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/args.h"
#include "server/caller.h"
#include "server/commands.h"
#include "server/links.h"

enum { MAX_ERROR = 256 };

/* The module API knows the rights of a user, but not whether the user is disabled. */
static int is_enabled(RedisModuleCtx *ctx, RedisModuleString *name) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "ACL", "cs", "GETUSER", name);
    int enabled = 0;
    if (reply && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ARRAY &&
        RedisModule_CallReplyLength(reply) >= 2) {
        RedisModuleCallReply *flags = RedisModule_CallReplyArrayElement(reply, 1);
        for (size_t i = 0; i < RedisModule_CallReplyLength(flags) && !enabled; i++) {
            size_t length;
            const char *flag = RedisModule_CallReplyStringPtr(RedisModule_CallReplyArrayElement(flags, i), &length);
            enabled = flag && length == 2 && !memcmp(flag, "on", 2);
        }
    }
    if (reply) RedisModule_FreeCallReply(reply);
    return enabled;
}

/* 1: the user may not run the command, or may not use its keys. Does not refuse a command that is unknown or has too
 * few arguments, because RedisModule_Call reports this error. To check the keys of missing arguments would crash the
 * server. */
static int is_refused(RedisModuleCtx *ctx, RedisModuleUser *user, RedisModuleString **argv, int argc) {
    int count = 0, *flags = NULL;
    errno = 0;
    int *positions = RedisModule_GetCommandKeysWithFlags(ctx, argv, argc, &count, &flags);
    int malformed = !positions && errno;
    RedisModule_Free(positions);
    RedisModule_Free(flags);
    return !malformed && RedisModule_ACLCheckCommandPermissions(user, argv, argc) != REDISMODULE_OK;
}

/* Runs a command with the rights of `user`. `format` is the format of RedisModule_Call: with "S", the command runs with
 * the restrictions of a script; with "M", within the server's memory limit; with "!", the server replicates the
 * command. Returns the reply. NULL: the command did not run, and `error` has an error line. */
static RedisModuleCallReply *run(RedisModuleCtx *ctx, RedisModuleUser *user, const char *format,
                                 RedisModuleString **argv, int argc, char *error) {
    size_t length;
    const char *name = RedisModule_StringPtrLen(argv[0], &length);
    /* RedisModule_Call stops at a NUL byte in the name, but the checks read the whole name. */
    if (strlen(name) != length) {
        snprintf(error, MAX_ERROR, "ERR unknown command: %.64s", name);
        return NULL;
    }
    /* RG.INNERHOOK runs another command, with the rights of the user of its client. A function has no client. */
    if (arg_is(argv[0], "rg.innerhook")) {
        snprintf(error, MAX_ERROR, "NOPERM RG.INNERHOOK is for clients only");
        return NULL;
    }
    /* RedisModule_Call repeats this check, but if it refuses on Redis 7.0, it does not reply with NOPERM. */
    if (is_refused(ctx, user, argv, argc)) {
        snprintf(error, MAX_ERROR, "NOPERM the caller of this function may not run %.64s or touch its keys", name);
        return NULL;
    }
    RedisModule_SetContextUser(ctx, user);
    caller_act_as(user);
    RedisModuleCallReply *reply = RedisModule_Call(ctx, name, format, argv + 1, (size_t)argc - 1);
    caller_act_as(NULL);
    RedisModule_SetContextUser(ctx, NULL);
    if (!reply) snprintf(error, MAX_ERROR, "ERR %.64s cannot be run for a function", name);
    return reply;
}

static RedisModuleCallReply *run_as(RedisModuleCtx *ctx, const char *format, RedisModuleString **argv, int argc,
                                    char *error) {
    const char *name = RedisModule_StringPtrLen(argv[1], NULL);
    RedisModuleUser *user = RedisModule_GetModuleUserFromUserName(argv[1]);
    RedisModuleCallReply *reply = NULL;
    if (!user) snprintf(error, MAX_ERROR, "NOPERM no such user: %.128s", name);
    else if (!is_enabled(ctx, argv[1])) snprintf(error, MAX_ERROR, "NOPERM user is disabled: %.128s", name);
    else reply = run(ctx, user, format, argv + 2, argc - 2, error);
    if (user) RedisModule_FreeModuleUser(user);
    return reply;
}

RedisModuleCallReply *calling_in_block(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, const char **error) {
    static char text[MAX_ERROR];
    *error = text;
    if (argc >= 3) return run_as(ctx, "!CSMEv", argv, argc, text);
    snprintf(text, sizeof text, "ERR wrong number of arguments for 'qa.as' command");
    return NULL;
}

static int QA_AS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    char error[MAX_ERROR];
    if (!link_require(ctx, "QA.AS")) return REDISMODULE_OK;
    if (argc < 3) return RedisModule_WrongArity(ctx);
    RedisModuleCallReply *reply = run_as(ctx, "!0CSMEv", argv, argc, error);
    if (!reply) return RedisModule_ReplyWithError(ctx, error);
    RedisModule_ReplyWithCallReply(ctx, reply);
    RedisModule_FreeCallReply(reply);
    return REDISMODULE_OK;
}

int calling_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"qa.as", QA_AS_RedisCommand, LINK_COMMAND_FLAGS " may-replicate", 0, 0, 0, "admin dangerous write"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

/* The module finds out with COMMAND INFO whether a command can be hooked. RG.INNERHOOK runs a hooked command with the
 * restrictions of a script. So the command must be a read that scripts may run, and its keys must be at fixed
 * positions. */
#include "functions/hooked_commands.h"

#include <string.h>
#include <strings.h>

#include "server/args.h"
#include "server/server.h"

enum { MAX_HOOKED = 64 };

static HookedCommand hooked[MAX_HOOKED];
static int hooked_count;

int hooked_commands_count(void) { return hooked_count; }

void hooked_commands_clear(void) { hooked_count = 0; }

const HookedCommand *hooked_commands_find(const char *name, size_t length) {
    for (int i = 0; i < hooked_count; i++)
        if (hooked[i].length == length && !strncasecmp(hooked[i].name, name, length)) return &hooked[i];
    return NULL;
}

static int has_flag(RedisModuleCallReply *flags, const char *flag) {
    for (size_t i = 0; i < RedisModule_CallReplyLength(flags); i++) {
        size_t length;
        const char *text = RedisModule_CallReplyStringPtr(RedisModule_CallReplyArrayElement(flags, i), &length);
        if (text && length == strlen(flag) && !memcmp(text, flag, length)) return 1;
    }
    return 0;
}

static long long element(RedisModuleCallReply *array, size_t index) {
    return RedisModule_CallReplyInteger(RedisModule_CallReplyArrayElement(array, index));
}

/* Reads the reply of COMMAND INFO: name, arity, flags, first key, last key, step and more. If a registration can hook
 * the command, sets the positions of its keys in `command` and returns NULL. Otherwise returns the reason. */
static const char *describe(RedisModuleCtx *ctx, HookedCommand *command) {
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "COMMAND", "cb", "INFO", command->name, command->length);
    RedisModuleCallReply *info = NULL;
    const char *problem = NULL;
    if (reply && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ARRAY && RedisModule_CallReplyLength(reply) == 1)
        info = RedisModule_CallReplyArrayElement(reply, 0);
    if (!info || RedisModule_CallReplyType(info) != REDISMODULE_REPLY_ARRAY || RedisModule_CallReplyLength(info) < 6) {
        problem = "that does not exist";
    } else {
        RedisModuleCallReply *flags = RedisModule_CallReplyArrayElement(info, 2);
        command->first_key = (int)element(info, 3);
        command->last_key = (int)element(info, 4);
        command->key_step = (int)element(info, 5);
        if (has_flag(flags, "noscript")) problem = "which is not allowed inside a script";
        else if (has_flag(flags, "movablekeys")) problem = "with moveable keys";
        else if (!has_flag(flags, "readonly")) problem = "which is not read only";
        else if (command->first_key <= 0 || command->key_step <= 0)
            problem = "by key prefix with none positive first key";
    }
    if (reply) RedisModule_FreeCallReply(reply);
    return problem;
}

static int set_name(HookedCommand *command, const char *word, size_t length) {
    if (length == 0 || length >= sizeof command->name) return 0;
    memset(command, 0, sizeof *command);
    memcpy(command->name, word, length);
    command->length = length;
    return 1;
}

RedisModuleString *hooked_commands_check(RedisModuleCtx *ctx, RedisModuleString *list) {
    size_t left, length;
    const char *at = RedisModule_StringPtrLen(list, &left), *word;
    while (list_next(&at, &left, &word, &length)) {
        HookedCommand command;
        const char *problem = set_name(&command, word, length) ? describe(ctx, &command) : "that does not exist";
        if (problem)
            return RedisModule_CreateStringPrintf(NULL, "ERR Can not hook a command %s: %.*s", problem,
                                                  (int)(length < 100 ? length : 100), word);
    }
    return NULL;
}

static void add(const char *word, size_t length) {
    HookedCommand command;
    if (hooked_commands_find(word, length) || !set_name(&command, word, length)) return;
    if (hooked_count == MAX_HOOKED || describe(server_ctx(), &command)) {
        RedisModule_Log(server_ctx(), "warning", "command %.*s cannot be hooked on this server", (int)length, word);
        return;
    }
    hooked[hooked_count++] = command;
}

void hooked_commands_add(RedisModuleString *list) {
    size_t left, length;
    const char *at = RedisModule_StringPtrLen(list, &left), *word;
    while (list_next(&at, &left, &word, &length)) add(word, length);
}

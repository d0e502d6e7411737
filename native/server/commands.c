/* Registers commands, with ACL categories and key flags where the server supports them. */
#include "server/commands.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/links.h"

/* The server does not add commands of modules to ACL categories. So the module derives the categories from the flags.
 * Otherwise, rules for categories would not restrict these commands. */
static void derive_categories(const char *flags, char *to, size_t size) {
    snprintf(to, size, "%s%s%s%s", strstr(flags, "admin") ? "admin dangerous " : "",
             strstr(flags, "write") ? "write " : "", strstr(flags, "readonly") ? "read " : "",
             strstr(flags, "fast") ? "fast" : "slow");
}

static int set_categories(const CommandSpec *spec, RedisModuleCommand *command) {
    if (!RedisModule_SetCommandACLCategories) return REDISMODULE_OK;
    char derived[64];
    derive_categories(spec->flags, derived, sizeof derived);
    return RedisModule_SetCommandACLCategories(command, spec->categories ? spec->categories : derived);
}

/* Tells the server that a command with the flag `readonly` only reads its key. By default, the server assumes that a
 * module's command reads and writes its key. */
static int set_key_is_read(const CommandSpec *spec, RedisModuleCommand *command) {
    if (!spec->first_key || !strstr(spec->flags, "readonly")) return REDISMODULE_OK;
    RedisModuleCommandKeySpec keys[2] = {
        {.flags = KEY_READ, .begin_search_type = REDISMODULE_KSPEC_BS_INDEX, .bs.index.pos = spec->first_key}};
    RedisModuleCommandInfoVersion version = {.version = 1, .sizeof_key_spec = sizeof *keys};
    RedisModuleCommandInfo info = {.version = &version, .key_specs = keys};
    return RedisModule_SetCommandInfo(command, &info);
}

void report_keys_at(RedisModuleCtx *ctx, int offset, ArgRange range, int flags) {
    for (int i = 0; i < range.n; i++) RedisModule_KeyAtPosWithFlags(ctx, offset + range.first + i, flags);
}

int commands_register(RedisModuleCtx *ctx, const CommandSpec *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const CommandSpec *spec = &table[i];
        if (RedisModule_CreateCommand(ctx, spec->name, spec->handler, spec->flags, spec->first_key, spec->last_key,
                                      spec->key_step) != REDISMODULE_OK) {
            RedisModule_Log(ctx, "warning", "command %s cannot be registered (flags: %s)", spec->name, spec->flags);
            return REDISMODULE_ERR;
        }
        if (link_may_run(spec->name)) link_allow_command(spec->name);
        RedisModuleCommand *command = RedisModule_GetCommand(ctx, spec->name);
        if (!command || set_categories(spec, command) != REDISMODULE_OK ||
            set_key_is_read(spec, command) != REDISMODULE_OK) {
            RedisModule_Log(ctx, "warning", "command %s: the server refuses its ACL categories or keys", spec->name);
            return REDISMODULE_ERR;
        }
    }
    return REDISMODULE_OK;
}

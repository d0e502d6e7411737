/* The commands that registrations hook (hook.h), and the positions of the keys in these commands. registry.c rebuilds
 * the list when a session changes. Main thread only. */
#pragma once

#include <stddef.h>

#include "server/module_api.h"

typedef struct HookedCommand {
    char name[32];
    size_t length;
    int first_key, last_key, key_step;
} HookedCommand;

/* Checks a comma-separated list of commands. Returns NULL, or an error (to be freed) if a registration cannot hook one
 * of the commands. */
RedisModuleString *hooked_commands_check(RedisModuleCtx *ctx, RedisModuleString *list);

void hooked_commands_clear(void);
/* Adds the commands of a comma-separated list, without duplicates. Logs and skips a command that this server cannot
 * hook. */
void hooked_commands_add(RedisModuleString *list);

int hooked_commands_count(void);
/* Returns the hooked command with this name. NULL: no registration hooks the command. The name may have upper and lower
 * case letters. */
const HookedCommand *hooked_commands_find(const char *name, size_t length);

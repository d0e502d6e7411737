/* The commands that registrations hook: which commands of the server they can hook at all, and where their keys are.
 *
 * The list belongs to the current registrations; registry.c writes it anew whenever they change. Main thread only. */
#ifndef QA_HOOKED_COMMANDS_H
#define QA_HOOKED_COMMANDS_H

#include <stddef.h>

#include "server/module_api.h"

typedef struct HookedCommand {
    char name[32];
    size_t length;
    int first_key, last_key, key_step;
} HookedCommand;

/* NULL when registrations can hook all commands of the comma separated list, else an error (to be freed). */
RedisModuleString *hooked_commands_check(RedisModuleCtx *ctx, RedisModuleString *list);

void hooked_commands_clear(void);
/* Adds the commands of a comma separated list that are new. Logs and leaves out one that this server cannot hook. */
void hooked_commands_add(RedisModuleString *list);

int hooked_commands_count(void);
/* NULL: no registration hooks it. The name may be in any case. */
const HookedCommand *hooked_commands_find(const char *name, size_t length);

#endif

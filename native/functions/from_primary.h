/* For the command filter. Returns 1 if the command may come from the primary. The filter has then put RG.FROMPRIMARY
 * before the command, and RG.FROMPRIMARY decides. */
#ifndef QA_FROM_PRIMARY_H
#define QA_FROM_PRIMARY_H

#include "server/module_api.h"

int from_primary_on_load(RedisModuleCtx *ctx);

/* Creates event jobs from keyspace notifications, and implements the keymiss hook.
 *
 * The hook works in three steps:
 * 1. The command filter sees each command of a client. It puts RG.INNERHOOK before a read if a registration hooks the
 * command and matches one of its keys.
 * 2. RG.INNERHOOK runs the read with the caller's rights and keeps the reply. If a key is missing, the server notifies
 * the module during that call, and on_miss stores the registration in the innermost HookCall.
 * 3. RG.INNERHOOK then blocks the client until the function has answered.
 * HookCalls are on the C stack and form a chain, because a hooked read can run inside another hooked read.
 *
 * The filter and the notifications run for every command of the server, so they must return early. Without a KeysReader
 * registration they return at once. Otherwise the first byte of the key often decides. */
int from_primary_guard(RedisModuleCommandFilterCtx *filter);

#endif

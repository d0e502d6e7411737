/* Refuses commands of a primary that replication never contains, such as ACL SETUSER and CONFIG SET.
 *
 * Through the cluster bus, any server can claim to be the primary of this server. This server runs each command of its
 * primary without a check of rights. */
#pragma once

#include "server/module_api.h"

int from_primary_on_load(RedisModuleCtx *ctx);

/* The command filter calls this function for each command. 1: the command is one of the refused commands and may come
 * from the primary. Then this function has put RG.FROMPRIMARY before the command, and RG.FROMPRIMARY decides. 0: the
 * command is unchanged. */
int from_primary_guard(RedisModuleCommandFilterCtx *filter);

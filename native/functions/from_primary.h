/* Refuses commands of a primary that replication never contains, such as ACL SETUSER and CONFIG SET.
 *
 * The cluster bus lets any server claim to be the primary of this one, and the server runs each command of its primary
 * without asking for rights. */
#ifndef QA_FROM_PRIMARY_H
#define QA_FROM_PRIMARY_H

#include "server/module_api.h"

int from_primary_on_load(RedisModuleCtx *ctx);

/* For the command filter. Returns 1 if the command may come from the primary. The filter has then put RG.FROMPRIMARY
 * before the command, and RG.FROMPRIMARY decides. */
int from_primary_guard(RedisModuleCommandFilterCtx *filter);

#endif

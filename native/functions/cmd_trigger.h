/* How the module recognizes the primary depends on the server:
 * - On Redis 7.2 and later and on Valkey, the primary is the only client without a user. The filter can see that.
 * - On Redis 7.0, the filter does not learn which client sent the command. On a replica it puts RG.FROMPRIMARY before
 *   each dangerous command, for every client. RG.FROMPRIMARY refuses the command if the client is the primary.
 *   Otherwise it runs the command with the client's rights. So on Redis 7.0 an administrator of a replica also needs
 *   the right to run rg.fromprimary.
 * Lua scripts cannot run these commands. The module's own commands refuse the primary themselves
 * (caller_require_admin). */
#ifndef QA_CMD_TRIGGER_H
#define QA_CMD_TRIGGER_H

#include "server/module_api.h"

int trigger_on_load(RedisModuleCtx *ctx);

#endif

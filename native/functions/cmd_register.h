/* QA.REGISTER stores a session. QA.SESSIONS and QA.REGISTRATIONS list the server's sessions and registrations. Of all
 * clients, only the worker may call these commands. The AOF and a primary also send QA.REGISTER. */
#ifndef QA_CMD_REGISTER_H
#define QA_CMD_REGISTER_H

#include "server/module_api.h"

enum { MAX_REGISTRATIONS = 10000 }; /* in a session */

int register_on_load(RedisModuleCtx *ctx);

#endif

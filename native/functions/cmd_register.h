/* QA.REGISTER stores a session. QA.SESSIONS and QA.REGISTRATIONS list what the server has. Only the worker calls them,
 * except that the AOF and a primary repeat QA.REGISTER. */
#ifndef QA_CMD_REGISTER_H
#define QA_CMD_REGISTER_H

#include "server/module_api.h"

enum { MAX_REGISTRATIONS = 10000 }; /* in a session */

int register_on_load(RedisModuleCtx *ctx);

#endif

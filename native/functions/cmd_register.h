/* QA.REGISTER stores a session. QA.SESSIONS and QA.REGISTRATIONS list what the server has. Only the worker calls them,
 * except that the AOF and a primary repeat QA.REGISTER. */
#ifndef QA_CMD_REGISTER_H
#define QA_CMD_REGISTER_H

#include "server/module_api.h"

enum {
    MAX_REGISTRATIONS = 10000
}; /* A trigger is a job that its caller waits for. The job refers to its registration by id, because the registration
      may no longer exist when the job ends. The job has the name of its caller, because the function runs with the
      caller's rights. */

int register_on_load(RedisModuleCtx *ctx);

#endif

/* The places of jobs in the fair queue (queue.h). A place names the flow of a job on each level. */
#pragma once

#include "jobs/queue.h"
#include "server/module_api.h"

/* Returns the place of the calling client. Its keys are the class, the ACL user, the name (CLIENT SETNAME) and the
 * connection. */
QueuePlace flows_of_caller(RedisModuleCtx *ctx);

/* Returns the place for this name (a registration's id) in a queue of one level. */
QueuePlace flows_of_name(RedisModuleString *name);

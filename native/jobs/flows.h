/* The place of a client's jobs in the fair queue. */
#ifndef QA_FLOWS_H
#define QA_FLOWS_H

#include "jobs/queue.h"
#include "server/module_api.h"

/* The class, the ACL user, the name (CLIENT SETNAME) and the connection of the calling client. */
QueuePlace flows_of_caller(RedisModuleCtx *ctx);

/* The place for this name (a registration's id) in a queue of one level. */
QueuePlace flows_of_name(RedisModuleString *name);

#endif

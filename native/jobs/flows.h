/* The places of jobs in the fair queue (queue.h). A flow is the sequence of jobs from one source. A place names the
 * flow of a job on each level of the queue. */
#pragma once

#include "jobs/queue.h"
#include "server/module_api.h"

/* Returns the place of the calling client. The keys of the place are the class (interactive or bulk), the ACL user, the
 * client's name (CLIENT SETNAME) and the connection. */
QueuePlace flows_of_caller(RedisModuleCtx *ctx);

/* Returns the place for this name (a registration's id) in a queue of one level. */
QueuePlace flows_of_name(RedisModuleString *name);

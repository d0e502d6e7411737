/* Whose turn a client's job takes: the place of its flow in the fair queue. */
#ifndef QA_FLOWS_H
#define QA_FLOWS_H

#include "jobs/queue.h"
#include "server/module_api.h"

/* The calling client's class, its ACL user, its name (CLIENT SETNAME) and its connection. */
QueuePlace flows_of_caller(RedisModuleCtx *ctx);

/* The place, in a queue of one level, of what belongs to this name (a registration's id). */
QueuePlace flows_of_name(RedisModuleString *name);

#endif

/* Orders: jobs with the same name (a registration's id) run one after the other.
 *
 * This part uses only the server's memory and dictionaries. The callers own the jobs, and report the end of each
 * job. */
#pragma once

#include "jobs/queue.h"
#include "server/module_api.h"

typedef struct Order Order;

/* Returns the order with this name. Creates a missing order; then the caller must call order_enter. */
Order *order_find(RedisModuleString *name);

/* 1: the order had no node, so the node may run. 0: the node waits in the queue of the order. */
int order_enter(Order *order, QueueNode *node);

/* The queue of the waiting nodes. */
Queue *order_queue(Order *order);

/* Call it when the running node has ended. Returns the next node, which may run now. NULL: no node was waiting, and the
 * order was freed. Do not call it after the removal of a waiting node. */
QueueNode *order_next(Order *order);

/* The number of waiting nodes in all orders. */
size_t order_kept(void);

/* The number of waiting nodes in the order with this name. */
size_t order_kept_of(RedisModuleString *name);

/* `besides` is the number of nodes that already wait for the caller. If the longest order has at least two waiting
 * nodes more than `besides`, returns the newest node of this order; otherwise NULL. The caller removes the node from
 * the order's queue. */
QueueNode *order_rival(size_t besides);

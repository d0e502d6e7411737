/* Orders: the jobs of an order run one after the other. The name of an order is the id of a registration. The nodes
 * (queue.h) of an order are its jobs: one node may run, and the others wait in the queue of the order.
 *
 * order.c uses only the server's memory and dictionaries. The callers own the jobs, and report the end of each job. */
#pragma once

#include "jobs/queue.h"
#include "server/module_api.h"

typedef struct Order Order;

/* Returns the order with this name. Creates a missing order; then the caller must call order_enter. */
Order *order_find(RedisModuleString *name);

/* Adds a node to the order. 1: the order had no node, so this node may run. 0: the node waits in the queue of the
 * order.
 */
int order_enter(Order *order, QueueNode *node);

/* The queue of the waiting nodes. */
Queue *order_queue(Order *order);

/* Call order_next when the node that may run has ended, but not when a waiting node was removed. Returns the next node,
 * which may run now. NULL: no node was waiting, and the order was freed. */
QueueNode *order_next(Order *order);

/* The number of waiting nodes in all orders. */
size_t order_kept(void);

/* The number of waiting nodes in the order with this name; 0 if there is no such order. */
size_t order_kept_of(RedisModuleString *name);

/* For a full queue: returns the newest waiting node of the longest order, if the longest order has at least two waiting
 * nodes more than `besides`; otherwise NULL. `besides` is the number of nodes that already compete with the new node:
 * the nodes of the new node's user in the queue and, if the new node has an order, the nodes that wait in this order.
 * The caller removes the returned node from the queue of the longest order. */
QueueNode *order_rival(size_t besides);

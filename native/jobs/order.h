/* Jobs that must run one after the other: of the jobs with the same name (a registration's id) only one runs at a time.
 *
 * This part uses only the server's memory and dictionaries. Its callers own the jobs and report the end of each. */
#ifndef QA_ORDER_H
#define QA_ORDER_H

#include "jobs/queue.h"
#include "server/module_api.h"

typedef struct Order Order;

/* The order of this name. If it is new, the caller must enter it. */
Order *order_find(RedisModuleString *name);

/* 1: the node is the first, so it may run. 0: the order keeps it in its own queue. */
int order_enter(Order *order, QueueNode *node);

/* The queue of the kept nodes. */
Queue *order_queue(Order *order);

/* The running node has ended. Returns the next node, which may run now, or NULL: the order is freed. A kept node that
 * the caller removed from the queue needs no call. */
QueueNode *order_next(Order *order);

/* The number of kept nodes in all orders. */
size_t order_kept(void);

/* The number of kept nodes in the order of this name. */
size_t order_kept_of(RedisModuleString *name);

/* The newest node of the longest order, if that has at least two more nodes than `besides`; else NULL. The caller
 * removes it from the order's queue. */
QueueNode *order_rival(size_t besides);

#endif

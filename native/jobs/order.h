/* Jobs that must run one after the other: of those with the same name (a registration's id) one may go at a time.
 *
 * It knows nothing of the server but its memory and dictionaries; jobs.c owns the jobs and calls when one has ended. */
#ifndef QA_ORDER_H
#define QA_ORDER_H

#include "jobs/queue.h"
#include "server/module_api.h"

typedef struct Order Order;

/* The order of this name. When it is new, the caller must enter it. */
Order *order_find(RedisModuleString *name);

/* 1: nothing is before the node, so it may go; 0: the order's queue keeps it. */
int order_enter(Order *order, QueueNode *node);

/* The queue of the kept ones. */
Queue *order_queue(Order *order);

/* The running one has ended: returns the next, which may go now, or NULL (then the order is gone). A kept one that the
 * caller took out of the queue needs no call. */
QueueNode *order_next(Order *order);

/* How many are kept, in all orders. */
size_t order_kept(void);

/* How many are kept in the order of this name. */
size_t order_kept_of(RedisModuleString *name);

/* The newest of the order that keeps most, if that has more than `besides` by more than one; else NULL. The caller
 * takes it out of that order's queue. */
QueueNode *order_rival(size_t besides);

#endif

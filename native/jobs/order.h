/* Jobs that must run one after the other: those with the same name (a registration's id) are let go one at a time.
 *
 * Knows nothing of the server but its memory and dictionaries; jobs.c owns the jobs and says when one has ended. */
#ifndef QA_ORDER_H
#define QA_ORDER_H

#include "jobs/queue.h"
#include "server/module_api.h"

typedef struct Order Order;

/* The order of this name; one that nothing has entered yet must be entered. */
Order *order_find(RedisModuleString *name);

/* 1: nothing is before it, it may go; 0: it is kept in the order's queue. */
int order_enter(Order *order, QueueNode *node);

/* Where the kept ones are. */
Queue *order_queue(Order *order);

/* The one that had been let go has ended: the next, which may go now, or NULL (then the order is gone). A kept one that
 * was taken out of the queue needs no call. */
QueueNode *order_next(Order *order);

/* How many are kept, in all orders. */
size_t order_kept(void);

#endif

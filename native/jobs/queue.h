/* A fair queue: start-time fair queueing (Goyal, Vin and Cheng, 1996) on a tree of flows.
 *
 * FLOWS. A flow is the sequence of items from one source. The levels of the tree for clients are the class, the user,
 * the client's name and the connection. A place names one flow on each level. Flows with the same parent take turns by
 * the cost of their items, not by the number of items. Each flow has a tag that grows with the cost of its served
 * items. The flow with the lowest tag is next. A new flow starts at the current tag of its siblings, so the time during
 * which it was absent gives it neither an advantage nor a disadvantage.
 *
 * LIMITS. An item is outstanding after it was popped, until it is released. Fair turns would have no effect if many
 * popped items waited elsewhere. So the queue limits the outstanding cost. For a flow with neighbors, the
 * limit is the cost of the largest recent item of a neighbor, and at least `shared`. A flow may always have one
 * outstanding item. A flow counts as a neighbor until it has been empty for `linger`.
 *
 * MEMORY AND TIME. The queue does not know the server. The owner's structure contains the node, so a push cannot fail
 * for lack of memory if the flow exists. An operation takes O(log flows), except queue_rival, which scans all flows of
 * each level. The number of items has no limit: the owner calls queue_length() before a push. A flow exists while it
 * has queued or outstanding items, and for `linger` after that. The queue remembers at most QUEUE_MAX_IDLE empty
 * flows. */
#ifndef QA_QUEUE_H
#define QA_QUEUE_H

#include <stddef.h>
#include <stdint.h>

typedef struct QueueFlow QueueFlow;
typedef struct Queue Queue;

enum { QUEUE_LEVELS = 4, QUEUE_MAX_IDLE = 1024 };

/* The first key of a place with QUEUE_LEVELS keys. Bulk flows get one turn while the others get
 * QUEUE_INTERACTIVE_WEIGHT. Interactive flows count as their neighbors. */
enum { QUEUE_INTERACTIVE, QUEUE_BULK };
enum { QUEUE_INTERACTIVE_WEIGHT = 8 };

typedef struct QueuePlace {
    uint64_t keys[QUEUE_LEVELS]; /* for the levels of the queue */
} QueuePlace;

/* The outstanding cost of a popped item. */
typedef struct QueueHold {
    QueueFlow *flow; /* NULL: no outstanding cost */
    uint32_t cost;
} QueueHold;

typedef struct QueueNode {
    struct QueueNode *next;
    struct QueueNode *previous;
    QueueFlow *flow; /* NULL: not queued */
    uint32_t cost;   /* what it takes of its flow's turn; the owner sets it, 0 counts as 1 */
    QueueHold hold;  /* the owner sets its cost before it pushes; 0: it never counts as outstanding */
} QueueNode;

typedef struct QueueAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} QueueAllocator;

typedef struct QueueLimits {
    uint32_t whole;  /* the maximum outstanding cost; 0: no limits */
    uint32_t shared; /* the outstanding cost that a flow with neighbors may always have */
    uint64_t linger; /* in the unit of queue_tick */
} QueueLimits;

/* `levels` is 1 to QUEUE_LEVELS. */
Queue *queue_new(QueueAllocator allocator, int levels);
/* The queue must be empty and must have no outstanding items. */
void queue_free(Queue *queue);
/* Sets the limits from now on; outstanding items stay. A new queue has no limits. */
void queue_limit(Queue *queue, QueueLimits limits);
/* Sets the time, which must not go back, and frees flows that were empty for long enough. */
void queue_tick(Queue *queue, uint64_t now);

void queue_push(Queue *queue, QueueNode *node, const QueuePlace *place);
/* Puts the node first in its flow, and makes the flow the next one: for an item that was popped before. */
void queue_push_front(Queue *queue, QueueNode *node, const QueuePlace *place);
/* 1: an item may be popped. */
int queue_ready(Queue *queue);
/* NULL: the queue is empty, or its limits allow no more. The item is outstanding until its hold is released. */
QueueNode *queue_pop(Queue *queue);
/* Makes an item outstanding that is in no queue, as if it had been popped here; the limits do not apply. */
void queue_hold(Queue *queue, QueueNode *node, const QueuePlace *place);
void queue_release(Queue *queue, QueueHold *hold);
void queue_remove(Queue *queue, QueueNode *node);

/* For a full queue: the newest item of the largest flow of a level. It is the first level on which the flow of this
 * place has at least two items less than the largest flow. NULL: there is no such level. */
QueueNode *queue_rival(Queue *queue, const QueuePlace *place);

size_t queue_length(const Queue *queue);
/* The number of queued items of the class. */
size_t queue_class_length(const Queue *queue, uint64_t class);
/* The number of queued items of this place's flow on a level, from 1. */
size_t queue_flow_length(Queue *queue, const QueuePlace *place, int level);
/* The number of flows on a level, from 1. Empty flows that count as neighbors are included. */
size_t queue_flows(const Queue *queue, int level);
size_t queue_out(const Queue *queue);

#endif

/* A fair queue, by start-time fair queueing (Goyal, Vin and Cheng, 1996) on a tree of flows.
 *
 * A place names a flow on each level: for clients the class, the user, the client's name and the connection. Siblings
 * take turns, not item by item but by what their items cost: each flow has a tag that grows with the cost of what it
 * was served, and the one with the lowest goes next. One that comes anew begins where the others stand, so it gains
 * nothing by having been away, and loses nothing.
 *
 * The order would be lost where items wait behind the queue, so it also says how much is out: popped, and not released
 * yet. A flow that has neighbours may have as much out as the largest item that one of them has had of late, and
 * `shared` at least; one item it may always have. A flow counts as a neighbour until it has had nothing for `linger`.
 *
 * It knows nothing of the server. The owner's structure contains the node, so pushing cannot fail for want of memory
 * once the flow exists. Operations take O(log flows), but queue_rival, for a full queue, looks at all flows of each
 * level. The queue has no bound: its owner asks queue_length() before it pushes. A flow lives as long as it has items
 * or something out, and `linger` after that; the queue remembers at most QUEUE_MAX_IDLE such flows. */
#ifndef QA_QUEUE_H
#define QA_QUEUE_H

#include <stddef.h>
#include <stdint.h>

typedef struct QueueFlow QueueFlow;
typedef struct Queue Queue;

enum { QUEUE_LEVELS = 4, QUEUE_MAX_IDLE = 1024 };

/* The keys of a place with QUEUE_LEVELS keys begin with one of these. Bulk flows get one turn where the others get
 * QUEUE_INTERACTIVE_WEIGHT, and have neighbours as long as there are others. */
enum { QUEUE_INTERACTIVE, QUEUE_BULK };
enum { QUEUE_INTERACTIVE_WEIGHT = 8 };

typedef struct QueuePlace {
    uint64_t keys[QUEUE_LEVELS]; /* of the levels that the queue has */
} QueuePlace;

/* What an item that was popped has out. */
typedef struct QueueHold {
    QueueFlow *flow; /* NULL: nothing */
    uint32_t cost;
} QueueHold;

typedef struct QueueNode {
    struct QueueNode *next;
    struct QueueNode *previous;
    QueueFlow *flow; /* NULL: not queued */
    uint32_t cost;   /* what it takes of its flow's turn; the owner sets it, 0 counts as 1 */
    QueueHold hold;  /* the owner sets its cost before it pushes, 0: it does not count as being out */
} QueueNode;

typedef struct QueueAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} QueueAllocator;

typedef struct QueueLimits {
    uint32_t whole;  /* how much may be out; 0: no limit of any kind */
    uint32_t shared; /* how much of a flow with neighbours may be out at least */
    uint64_t linger; /* in the unit of queue_tick */
} QueueLimits;

/* With 1 to QUEUE_LEVELS levels. */
Queue *queue_new(QueueAllocator allocator, int levels);
/* The queue must be empty, and nothing out. */
void queue_free(Queue *queue);
/* They hold from now on; what is out stays out. A queue has none at first. */
void queue_limit(Queue *queue, QueueLimits limits);
/* Tells the time, which never goes back, and forgets the flows that have had nothing for long. */
void queue_tick(Queue *queue, uint64_t now);

void queue_push(Queue *queue, QueueNode *node, const QueuePlace *place);
/* Puts the node at the head of its flow, and the flow next in turn: for an item that was popped before. */
void queue_push_front(Queue *queue, QueueNode *node, const QueuePlace *place);
/* Is there an item that may be popped? */
int queue_ready(Queue *queue);
/* NULL when it is empty or the limits allow no more. The item is out until its hold is released. */
QueueNode *queue_pop(Queue *queue);
/* The item, which is in no queue, is out from now on, as if it had been popped from here; whatever the limits say. */
void queue_hold(Queue *queue, QueueNode *node, const QueuePlace *place);
void queue_release(Queue *queue, QueueHold *hold);
void queue_remove(Queue *queue, QueueNode *node);

/* For a full queue: the newest item of the flow that has most, on the first level on which the flow of this place has
 * less by more than one item; NULL where none has. */
QueueNode *queue_rival(Queue *queue, const QueuePlace *place);

size_t queue_length(const Queue *queue);
/* How many items wait in the class. */
size_t queue_class_length(const Queue *queue, uint64_t class);
/* How many items wait in the flow of this place on a level, from 1. */
size_t queue_flow_length(Queue *queue, const QueuePlace *place, int level);
/* How many flows there are on a level, from 1; also those that have nothing any more, but count as neighbours. */
size_t queue_flows(const Queue *queue, int level);
size_t queue_out(const Queue *queue);

#endif

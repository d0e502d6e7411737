/* A fair queue: start-time fair queueing (Goyal, Vin and Cheng, 1996) on a tree of flows.
 *
 * FLOWS. The owner is the code that has made the queue. An item is what the owner puts into the queue, for example a
 * job. A node (QueueNode) is the part of an item that the queue uses. A flow is the sequence of items from one source.
 * For clients, the levels of the tree are the class, the user, the client's name and the connection. A place names one
 * flow on each level. Flows with the same parent take turns by the cost of their items. Each flow has a tag, a number
 * that grows with the cost of the flow's popped items. The flow with the lowest tag is next. A new flow starts with the
 * current tag of the other flows, so it has no advantage and no disadvantage.
 *
 * LIMITS. A popped item is outstanding until its hold is released (QueueHold). Two flows with the same parent are
 * neighbors. If a flow above the last level has a neighbor, the queue limits the outstanding cost of the flow. The
 * limit is the largest recent cost of one item of the flow and its neighbors, and at least `shared`. Each flow may
 * always have one outstanding item. A flow that has become empty still counts as a neighbor for the time `linger`.
 *
 * MEMORY AND TIME. The queue does not depend on the server. The owner allocates the nodes as part of its own items. An
 * operation takes O(log flows), except queue_rival, which scans all flows of each level. The owner limits the number of
 * items. The queue remembers at most QUEUE_MAX_IDLE empty flows. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct QueueFlow QueueFlow;
typedef struct Queue Queue;

enum { QUEUE_LEVELS = 4, QUEUE_MAX_IDLE = 1024 };

/* The class: the first key of a place in a queue with QUEUE_LEVELS levels. The bulk class gets one turn for each
 * QUEUE_INTERACTIVE_WEIGHT turns of the interactive class. The interactive class limits the outstanding cost of the
 * bulk class, as a neighbor. The bulk class does not limit the interactive class. */
enum { QUEUE_INTERACTIVE, QUEUE_BULK };
enum { QUEUE_INTERACTIVE_WEIGHT = 8 };

typedef struct QueuePlace {
    uint64_t keys[QUEUE_LEVELS]; /* one key for each level of the queue */
} QueuePlace;

/* The outstanding cost of a popped item. */
typedef struct QueueHold {
    QueueFlow *flow; /* NULL: the item has no outstanding cost */
    uint32_t cost;
} QueueHold;

typedef struct QueueNode {
    struct QueueNode *next;
    struct QueueNode *previous;
    QueueFlow *flow; /* NULL: the node is not queued */
    uint32_t cost;   /* the cost of the item in its flow's turns; the owner sets it, and 0 counts as 1 */
    QueueHold hold;  /* the owner sets hold.cost before a push; 0: the item never counts as outstanding */
} QueueNode;

typedef struct QueueAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} QueueAllocator;

typedef struct QueueLimits {
    uint32_t whole;  /* the maximum outstanding cost of all flows; 0: no limits */
    uint32_t shared; /* the outstanding cost that every flow may have */
    uint64_t linger; /* how long an empty flow counts as a neighbor, in the unit of queue_tick */
} QueueLimits;

/* Returns a new, empty queue. `levels` is the number of levels of flows, 1 to QUEUE_LEVELS. */
Queue *queue_new(QueueAllocator allocator, int levels);
/* Frees a queue, which must be empty and must have no outstanding items. */
void queue_free(Queue *queue);
/* Sets the limits for future pops. Outstanding items are not affected. A new queue has no limits. */
void queue_limit(Queue *queue, QueueLimits limits);
/* Sets the time, in the unit that the owner has chosen for `linger`. The time must not go back. Frees flows that have
 * been empty for `linger`. */
void queue_tick(Queue *queue, uint64_t now);

void queue_push(Queue *queue, QueueNode *node, const QueuePlace *place);
/* Puts a popped item back at the front of its flow, and this flow before all other flows. */
void queue_push_front(Queue *queue, QueueNode *node, const QueuePlace *place);
/* 1: an item may be popped. */
int queue_ready(Queue *queue);
/* Returns the next item. The item is outstanding until its hold is released. NULL: the queue is empty, or the limits
 * allow no more items. */
QueueNode *queue_pop(Queue *queue);
/* Makes an item outstanding without a pop, as if the item had been popped from this place. The item must be in no
 * queue. The limits do not apply to this call. */
void queue_hold(Queue *queue, QueueNode *node, const QueuePlace *place);
void queue_release(Queue *queue, QueueHold *hold);
void queue_remove(Queue *queue, QueueNode *node);

/* For a full queue: returns the item to remove so that an item with this place can enter. From the top level down, the
 * function compares the flow of this place with its neighbor that has the most items. If this neighbor has at least two
 * items more than the flow of this place, the function returns the newest item of the neighbor. On the level of
 * classes, one bulk item counts as QUEUE_INTERACTIVE_WEIGHT interactive items. NULL: no level has such a neighbor. */
QueueNode *queue_rival(Queue *queue, const QueuePlace *place);

size_t queue_length(const Queue *queue);
/* The number of queued items of the class. */
size_t queue_class_length(const Queue *queue, uint64_t class);
/* The number of queued items of this place's flow on the level `level` (1 is the first). */
size_t queue_flow_length(Queue *queue, const QueuePlace *place, int level);
/* The number of flows on the level `level` (1 is the first), including empty flows that still count as neighbors. */
size_t queue_flows(const Queue *queue, int level);
/* The outstanding cost of all flows. */
size_t queue_out(const Queue *queue);

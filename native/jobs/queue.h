/* A fair queue: items with the same key (a client's id) form a flow, and the flows take turns, one item each.
 *
 * It knows nothing of the server. The owner's structure contains the node, so pushing cannot fail for want of memory
 * once the flow exists; all operations are O(1) (a new key amortised). The queue has no bound: its owner asks
 * queue_length() before it pushes. */
#ifndef QA_QUEUE_H
#define QA_QUEUE_H

#include <stddef.h>
#include <stdint.h>

typedef struct QueueFlow QueueFlow;

typedef struct QueueNode {
    struct QueueNode *next;
    struct QueueNode *previous;
    QueueFlow *flow; /* NULL: not queued */
} QueueNode;

typedef struct QueueAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} QueueAllocator;

typedef struct Queue Queue;

Queue *queue_new(QueueAllocator allocator);
/* The queue must be empty. */
void queue_free(Queue *queue);

void queue_push(Queue *queue, QueueNode *node, uint64_t key);
/* Puts the node at the head of its flow, and the flow next in turn: for an item that was popped before. */
void queue_push_front(Queue *queue, QueueNode *node, uint64_t key);
/* NULL when empty. */
QueueNode *queue_pop(Queue *queue);
void queue_remove(Queue *queue, QueueNode *node);

size_t queue_length(const Queue *queue);
size_t queue_flows(const Queue *queue);

/* Pops from the first non-empty of `count` lanes after *turn, so that none of them can starve another. */
QueueNode *queue_pop_lanes(Queue **lanes, int count, int *turn);

#endif

/* Flows that have items form a ring, and `turn` is the one to serve next; a hash table finds a flow by its key. A flow
 * lives from its first item to its last. */
#include "jobs/queue.h"

#include <string.h>

struct QueueFlow {
    uint64_t key;
    QueueNode *head;
    QueueNode *tail;
    QueueFlow *next; /* in the ring of flows that have items */
    QueueFlow *previous;
    QueueFlow *bucket_next;
};

struct Queue {
    QueueAllocator allocator;
    QueueFlow *turn; /* the flow to serve next; NULL when empty */
    QueueFlow **buckets;
    size_t mask;
    size_t flows;
    size_t length;
};

enum { FIRST_BUCKETS = 16 };

static size_t hash(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdULL;
    return (size_t)(key ^ (key >> 33));
}

static QueueFlow **new_buckets(Queue *queue, size_t count) {
    QueueFlow **buckets = queue->allocator.alloc(count * sizeof *buckets);
    memset(buckets, 0, count * sizeof *buckets);
    return buckets;
}

Queue *queue_new(QueueAllocator allocator) {
    Queue *queue = allocator.alloc(sizeof *queue);
    memset(queue, 0, sizeof *queue);
    queue->allocator = allocator;
    queue->buckets = new_buckets(queue, FIRST_BUCKETS);
    queue->mask = FIRST_BUCKETS - 1;
    return queue;
}

void queue_free(Queue *queue) {
    queue->allocator.free(queue->buckets);
    queue->allocator.free(queue);
}

static void grow(Queue *queue) {
    size_t old_count = queue->mask + 1;
    QueueFlow **old = queue->buckets;
    queue->buckets = new_buckets(queue, old_count * 2);
    queue->mask = old_count * 2 - 1;
    for (size_t i = 0; i < old_count; i++) {
        for (QueueFlow *flow = old[i], *next; flow; flow = next) {
            next = flow->bucket_next;
            QueueFlow **bucket = &queue->buckets[hash(flow->key) & queue->mask];
            flow->bucket_next = *bucket;
            *bucket = flow;
        }
    }
    queue->allocator.free(old);
}

/* A new flow comes last in the current round. */
static QueueFlow *flow_of(Queue *queue, uint64_t key) {
    for (QueueFlow *flow = queue->buckets[hash(key) & queue->mask]; flow; flow = flow->bucket_next)
        if (flow->key == key) return flow;
    if (queue->flows > queue->mask) grow(queue);
    QueueFlow *flow = queue->allocator.alloc(sizeof *flow);
    memset(flow, 0, sizeof *flow);
    flow->key = key;
    QueueFlow **bucket = &queue->buckets[hash(key) & queue->mask];
    flow->bucket_next = *bucket;
    *bucket = flow;
    if (!queue->turn) {
        queue->turn = flow->next = flow->previous = flow;
    } else {
        flow->next = queue->turn;
        flow->previous = queue->turn->previous;
        flow->previous->next = flow;
        queue->turn->previous = flow;
    }
    queue->flows++;
    return flow;
}

static void drop_flow(Queue *queue, QueueFlow *flow) {
    QueueFlow **link = &queue->buckets[hash(flow->key) & queue->mask];
    while (*link != flow) link = &(*link)->bucket_next;
    *link = flow->bucket_next;
    flow->previous->next = flow->next;
    flow->next->previous = flow->previous;
    if (queue->turn == flow) queue->turn = flow->next == flow ? NULL : flow->next;
    queue->flows--;
    queue->allocator.free(flow);
}

void queue_push(Queue *queue, QueueNode *node, uint64_t key) {
    QueueFlow *flow = flow_of(queue, key);
    node->flow = flow;
    node->next = NULL;
    node->previous = flow->tail;
    if (flow->tail) flow->tail->next = node;
    else flow->head = node;
    flow->tail = node;
    queue->length++;
}

void queue_push_front(Queue *queue, QueueNode *node, uint64_t key) {
    QueueFlow *flow = flow_of(queue, key);
    node->flow = flow;
    node->previous = NULL;
    node->next = flow->head;
    if (flow->head) flow->head->previous = node;
    else flow->tail = node;
    flow->head = node;
    if (queue->turn != flow) {
        flow->previous->next = flow->next;
        flow->next->previous = flow->previous;
        flow->next = queue->turn;
        flow->previous = queue->turn->previous;
        flow->previous->next = flow;
        queue->turn->previous = flow;
        queue->turn = flow;
    }
    queue->length++;
}

void queue_remove(Queue *queue, QueueNode *node) {
    QueueFlow *flow = node->flow;
    if (node->previous) node->previous->next = node->next;
    else flow->head = node->next;
    if (node->next) node->next->previous = node->previous;
    else flow->tail = node->previous;
    node->next = node->previous = NULL;
    node->flow = NULL;
    queue->length--;
    if (!flow->head) drop_flow(queue, flow);
}

QueueNode *queue_pop(Queue *queue) {
    if (!queue->turn) return NULL;
    QueueNode *node = queue->turn->head;
    queue->turn = queue->turn->next;
    queue_remove(queue, node);
    return node;
}

size_t queue_length(const Queue *queue) { return queue->length; }

size_t queue_flows(const Queue *queue) { return queue->flows; }

QueueNode *queue_pop_lanes(Queue **lanes, int count, int *turn) {
    for (int i = 0; i < count; i++) {
        int lane = (*turn + i) % count;
        QueueNode *node = queue_pop(lanes[lane]);
        if (!node) continue;
        *turn = (lane + 1) % count;
        return node;
    }
    return NULL;
}

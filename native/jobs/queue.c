/* queue.h defines flow, tag, outstanding and neighbor. All flows are in one hash table, by parent and key. A flow is
 * ready if an item may be popped from the flow. Ready flows are in the heap of their parent. The heap is ordered by
 * tag, and for equal tags by the order of entry. When a flow at its limit is next in the heap, the queue removes the
 * flow from the heap. The flow enters the heap again when one of its outstanding items is released. Only flows on the
 * last level contain items. Only flows above the last level have an outstanding cost. */
#include "jobs/queue.h"

#include <string.h>

struct QueueFlow {
    uint64_t key;
    int level; /* its level; 0: the root */
    QueueFlow *parent;
    QueueFlow *bucket_next;
    QueueFlow *first_child;
    QueueFlow *sibling_next, *sibling_previous;
    QueueFlow *idle_next, *idle_previous;
    uint64_t idle_since;
    int idle;        /* 1: the flow is empty and in the list of idle flows */
    int worked;      /* 1: the flow has had outstanding items */
    size_t children; /* the number of its child flows */
    size_t queued;   /* the number of items in the flow and in flows below it */
    uint64_t out;    /* the outstanding cost of its items */
    uint32_t usual;  /* the largest recent cost of one popped item of the flows below it; falls slowly */

    uint64_t start;   /* its tag, compared with the tags of its siblings */
    int64_t entered;  /* the number of its entry: for equal tags, the flow with the lower number is next */
    size_t place;     /* position in the parent's heap, from 1; 0: not in the heap */
    uint64_t passed;  /* the tag of the last served child */
    QueueFlow **heap; /* its ready children */
    size_t heap_count, heap_room;

    QueueNode *head, *tail; /* its items; only on the last level */
};

struct Queue {
    QueueAllocator allocator;
    QueueLimits limits;
    int levels;
    uint64_t now;
    QueueFlow *root;
    QueueFlow **buckets;
    size_t mask;
    size_t flows;
    size_t counts[QUEUE_LEVELS + 1]; /* the number of flows on each level */
    int64_t entries, front_entries;
    QueueFlow *idle_first, *idle_last;
    size_t idle_count;
};

enum { FIRST_BUCKETS = 16, FIRST_HEAP = 4, USUAL_FALLS_BY = 8 };

/* ---- Memory ---- */

static void *new_zeroed(Queue *queue, size_t bytes) { return memset(queue->allocator.alloc(bytes), 0, bytes); }

static size_t hash(const QueueFlow *parent, uint64_t key) {
    key ^= (uint64_t)(uintptr_t)parent * 0x9e3779b97f4a7c15ULL;
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdULL;
    return (size_t)(key ^ (key >> 33));
}

static QueueFlow **bucket_of(Queue *queue, const QueueFlow *parent, uint64_t key) {
    return &queue->buckets[hash(parent, key) & queue->mask];
}

Queue *queue_new(QueueAllocator allocator, int levels) {
    Queue *queue = memset(allocator.alloc(sizeof *queue), 0, sizeof *queue);
    queue->allocator = allocator;
    queue->levels = levels;
    queue->buckets = new_zeroed(queue, FIRST_BUCKETS * sizeof *queue->buckets);
    queue->mask = FIRST_BUCKETS - 1;
    queue->root = new_zeroed(queue, sizeof *queue->root);
    return queue;
}

static void free_flow(Queue *queue, QueueFlow *flow) {
    queue->allocator.free(flow->heap);
    queue->allocator.free(flow);
}

static void grow(Queue *queue) {
    size_t old_count = queue->mask + 1;
    QueueFlow **old = queue->buckets;
    queue->buckets = new_zeroed(queue, old_count * 2 * sizeof *queue->buckets);
    queue->mask = old_count * 2 - 1;
    for (size_t i = 0; i < old_count; i++) {
        for (QueueFlow *flow = old[i], *next; flow; flow = next) {
            next = flow->bucket_next;
            QueueFlow **bucket = bucket_of(queue, flow->parent, flow->key);
            flow->bucket_next = *bucket;
            *bucket = flow;
        }
    }
    queue->allocator.free(old);
}

/* ---- The heap of a flow's ready children ---- */

static int goes_before(const QueueFlow *one, const QueueFlow *other) {
    return one->start != other->start ? one->start < other->start : one->entered < other->entered;
}

static void heap_put(QueueFlow *parent, QueueFlow *flow, size_t place) {
    parent->heap[place - 1] = flow;
    flow->place = place;
}

static void heap_rise(QueueFlow *parent, QueueFlow *flow, size_t place) {
    for (; place > 1 && goes_before(flow, parent->heap[place / 2 - 1]); place /= 2)
        heap_put(parent, parent->heap[place / 2 - 1], place);
    heap_put(parent, flow, place);
}

static void heap_sink(QueueFlow *parent, QueueFlow *flow, size_t place) {
    for (size_t below; (below = place * 2) <= parent->heap_count; place = below) {
        if (below < parent->heap_count && goes_before(parent->heap[below], parent->heap[below - 1])) below++;
        if (!goes_before(parent->heap[below - 1], flow)) break;
        heap_put(parent, parent->heap[below - 1], place);
    }
    heap_put(parent, flow, place);
}

static void heap_remove(QueueFlow *flow) {
    QueueFlow *parent = flow->parent;
    size_t place = flow->place;
    if (!place) return;
    flow->place = 0;
    QueueFlow *last = parent->heap[--parent->heap_count];
    if (last == flow) return;
    if (place > 1 && goes_before(last, parent->heap[place / 2 - 1])) heap_rise(parent, last, place);
    else heap_sink(parent, last, place);
}

static void heap_insert(Queue *queue, QueueFlow *flow, int64_t entered) {
    QueueFlow *parent = flow->parent;
    if (flow->start < parent->passed) flow->start = parent->passed;
    flow->entered = entered;
    if (parent->heap_count == parent->heap_room) {
        size_t room = parent->heap_room ? parent->heap_room * 2 : FIRST_HEAP;
        QueueFlow **heap = queue->allocator.alloc(room * sizeof *heap);
        if (parent->heap_count) memcpy(heap, parent->heap, parent->heap_count * sizeof *heap);
        queue->allocator.free(parent->heap);
        parent->heap = heap;
        parent->heap_room = room;
    }
    heap_rise(parent, flow, ++parent->heap_count);
}

static int has_ready(const Queue *queue, const QueueFlow *flow) {
    return flow->level == queue->levels ? flow->head != NULL : flow->heap_count > 0;
}

static void enter_if_ready(Queue *queue, QueueFlow *flow) {
    if (flow->parent && !flow->place && has_ready(queue, flow)) heap_insert(queue, flow, ++queue->entries);
}

/* ---- Flows ---- */

static QueueFlow *find(Queue *queue, QueueFlow *parent, uint64_t key) {
    QueueFlow *flow = *bucket_of(queue, parent, key);
    while (flow && (flow->parent != parent || flow->key != key)) flow = flow->bucket_next;
    return flow;
}

static QueueFlow *new_flow(Queue *queue, QueueFlow *parent, uint64_t key) {
    if (queue->flows > queue->mask) grow(queue);
    QueueFlow *flow = new_zeroed(queue, sizeof *flow);
    flow->key = key;
    flow->level = parent->level + 1;
    flow->parent = parent;
    QueueFlow **bucket = bucket_of(queue, parent, key);
    flow->bucket_next = *bucket;
    *bucket = flow;
    flow->sibling_next = parent->first_child;
    if (parent->first_child) parent->first_child->sibling_previous = flow;
    parent->first_child = flow;
    parent->children++;
    queue->flows++;
    queue->counts[flow->level]++;
    return flow;
}

static void end_idleness(Queue *queue, QueueFlow *flow) {
    if (!flow->idle) return;
    if (flow->idle_previous) flow->idle_previous->idle_next = flow->idle_next;
    else queue->idle_first = flow->idle_next;
    if (flow->idle_next) flow->idle_next->idle_previous = flow->idle_previous;
    else queue->idle_last = flow->idle_previous;
    flow->idle_next = flow->idle_previous = NULL;
    flow->idle = 0;
    queue->idle_count--;
}

static void drop_flow(Queue *queue, QueueFlow *flow) {
    QueueFlow *parent = flow->parent, **link = bucket_of(queue, parent, flow->key);
    while (*link != flow) link = &(*link)->bucket_next;
    *link = flow->bucket_next;
    if (flow->sibling_previous) flow->sibling_previous->sibling_next = flow->sibling_next;
    else parent->first_child = flow->sibling_next;
    if (flow->sibling_next) flow->sibling_next->sibling_previous = flow->sibling_previous;
    parent->children--;
    end_idleness(queue, flow);
    heap_remove(flow);
    queue->flows--;
    queue->counts[flow->level]--;
    free_flow(queue, flow);
}

static void drop_empty(Queue *queue, QueueFlow *flow, int for_good);

static void begin_idleness(Queue *queue, QueueFlow *flow) {
    flow->idle = 1;
    flow->idle_since = queue->now;
    flow->idle_previous = queue->idle_last;
    if (queue->idle_last) queue->idle_last->idle_next = flow;
    else queue->idle_first = flow;
    queue->idle_last = flow;
    if (++queue->idle_count > QUEUE_MAX_IDLE) drop_empty(queue, queue->idle_first, 1);
}

/* Frees this flow if it is empty, and then its empty parents. If `for_good` is 0, the function stops at a flow on the
 * level above the last level that has had outstanding items: this flow and its parents are kept for the time `linger`.
 */
static void drop_empty(Queue *queue, QueueFlow *flow, int for_good) {
    while (flow->parent && !flow->queued && !flow->out && !flow->children) {
        QueueFlow *parent = flow->parent;
        if (flow->worked && flow->level == queue->levels - 1 && queue->limits.linger && !for_good) {
            if (!flow->idle) begin_idleness(queue, flow);
            return;
        }
        drop_flow(queue, flow);
        flow = parent;
    }
}

void queue_tick(Queue *queue, uint64_t now) {
    queue->now = now;
    while (queue->idle_first && now - queue->idle_first->idle_since >= queue->limits.linger)
        drop_empty(queue, queue->idle_first, 1);
}

void queue_free(Queue *queue) {
    while (queue->idle_first) drop_empty(queue, queue->idle_first, 1);
    free_flow(queue, queue->root);
    queue->allocator.free(queue->buckets);
    queue->allocator.free(queue);
}

void queue_limit(Queue *queue, QueueLimits limits) { queue->limits = limits; }

static int is_class(const Queue *queue, const QueueFlow *flow) {
    return queue->levels == QUEUE_LEVELS && flow->level == 1;
}

static uint64_t weight(const Queue *queue, const QueueFlow *flow) {
    return is_class(queue, flow) && flow->key == QUEUE_INTERACTIVE ? QUEUE_INTERACTIVE_WEIGHT : 1;
}

/* ---- Outstanding items ---- */

static int has_neighbours(const Queue *queue, const QueueFlow *flow) {
    return flow->parent->children > 1 && !(is_class(queue, flow) && flow->key == QUEUE_INTERACTIVE);
}

static int may_have_out(const Queue *queue, const QueueFlow *flow, uint32_t more) {
    if (!more || !flow->out) return 1;
    if (!flow->parent) return flow->out + more <= queue->limits.whole;
    if (!has_neighbours(queue, flow)) return 1;
    uint32_t usual = flow->parent->usual;
    return flow->out + more <= (usual > queue->limits.shared ? usual : queue->limits.shared);
}

static void take_out(QueueNode *node) {
    uint32_t cost = node->hold.cost;
    node->hold.flow = node->flow->parent;
    for (QueueFlow *flow = node->hold.flow; flow; flow = flow->parent) {
        flow->out += cost;
        flow->worked = 1;
        if (flow->usual <= cost) flow->usual = cost;
        else flow->usual -= (flow->usual - cost + USUAL_FALLS_BY - 1) / USUAL_FALLS_BY;
    }
}

void queue_release(Queue *queue, QueueHold *hold) {
    QueueFlow *first = hold->flow;
    if (!first) return;
    hold->flow = NULL;
    for (QueueFlow *flow = first; flow; flow = flow->parent) {
        flow->out -= hold->cost;
        enter_if_ready(queue, flow);
    }
    drop_empty(queue, first, 0);
}

/* ---- Items ---- */

static QueueFlow *flow_at(Queue *queue, const QueuePlace *place) {
    QueueFlow *flow = queue->root;
    for (int i = 0; i < queue->levels; i++) {
        QueueFlow *child = find(queue, flow, place->keys[i]);
        flow = child ? child : new_flow(queue, flow, place->keys[i]);
        end_idleness(queue, flow);
        flow->queued++;
    }
    queue->root->queued++;
    return flow;
}

void queue_push(Queue *queue, QueueNode *node, const QueuePlace *place) {
    QueueFlow *flow = flow_at(queue, place);
    node->flow = flow;
    node->next = NULL;
    node->previous = flow->tail;
    if (flow->tail) flow->tail->next = node;
    else flow->head = node;
    flow->tail = node;
    for (; flow; flow = flow->parent) enter_if_ready(queue, flow);
}

void queue_push_front(Queue *queue, QueueNode *node, const QueuePlace *place) {
    QueueFlow *flow = flow_at(queue, place);
    node->flow = flow;
    node->previous = NULL;
    node->next = flow->head;
    if (flow->head) flow->head->previous = node;
    else flow->tail = node;
    flow->head = node;
    for (; flow->parent; flow = flow->parent) {
        heap_remove(flow);
        flow->start = flow->parent->passed;
        heap_insert(queue, flow, --queue->front_entries);
    }
}

static void unlink_node(QueueNode *node) {
    QueueFlow *flow = node->flow;
    if (node->previous) node->previous->next = node->next;
    else flow->head = node->next;
    if (node->next) node->next->previous = node->previous;
    else flow->tail = node->previous;
    node->next = node->previous = NULL;
    node->flow = NULL;
    for (; flow; flow = flow->parent) flow->queued--;
}

void queue_remove(Queue *queue, QueueNode *node) {
    QueueFlow *leaf = node->flow;
    unlink_node(node);
    for (QueueFlow *flow = leaf; flow->parent; flow = flow->parent)
        if (!has_ready(queue, flow)) heap_remove(flow);
    drop_empty(queue, leaf, 0);
}

/* Returns the next item of the flow, or of the flows below it. NULL: all are empty or at their limit. Removes flows
 * that have reached their limit from the heap. */
static QueueNode *next_below(Queue *queue, QueueFlow *flow) {
    if (flow->level == queue->levels) return flow->head;
    while (flow->heap_count) {
        QueueNode *node = next_below(queue, flow->heap[0]);
        if (node && may_have_out(queue, flow->heap[0], node->hold.cost)) return node;
        heap_remove(flow->heap[0]);
    }
    return NULL;
}

static QueueNode *next_item(Queue *queue) {
    QueueNode *node = next_below(queue, queue->root);
    return node && (!queue->limits.whole || may_have_out(queue, queue->root, node->hold.cost)) ? node : NULL;
}

int queue_ready(Queue *queue) { return next_item(queue) != NULL; }

QueueNode *queue_pop(Queue *queue) {
    QueueNode *node = next_item(queue);
    if (!node) return NULL;
    QueueFlow *leaf = node->flow;
    uint64_t cost = (node->cost ? node->cost : 1) * (uint64_t)QUEUE_INTERACTIVE_WEIGHT;
    if (node->hold.cost && queue->limits.whole) take_out(node);
    unlink_node(node);
    for (QueueFlow *flow = leaf; flow->parent; flow = flow->parent) {
        heap_remove(flow);
        flow->parent->passed = flow->start;
        flow->start += cost / weight(queue, flow);
        enter_if_ready(queue, flow);
    }
    drop_empty(queue, leaf, 0);
    return node;
}

void queue_hold(Queue *queue, QueueNode *node, const QueuePlace *place) {
    if (!node->hold.cost || !queue->limits.whole) return;
    QueueFlow *leaf = node->flow = flow_at(queue, place);
    take_out(node);
    node->flow = NULL;
    for (QueueFlow *flow = leaf; flow; flow = flow->parent) flow->queued--;
    drop_empty(queue, leaf, 0);
}

/* ---- A full queue ---- */

static QueueFlow *longest_child(const Queue *queue, const QueueFlow *flow) {
    QueueFlow *longest = flow->first_child;
    for (QueueFlow *at = longest; at; at = at->sibling_next)
        if (at->queued * weight(queue, longest) > longest->queued * weight(queue, at)) longest = at;
    return longest;
}

QueueNode *queue_rival(Queue *queue, const QueuePlace *place) {
    QueueFlow *flow = queue->root;
    for (int i = 0; i < queue->levels && flow; i++) {
        QueueFlow *longest = longest_child(queue, flow), *own = find(queue, flow, place->keys[i]);
        if (!longest) return NULL;
        QueueFlow newcomer = {.key = place->keys[i], .level = i + 1};
        uint64_t with_it = (own ? own->queued : 0) + 1;
        if (longest == own || longest->queued * weight(queue, &newcomer) <= with_it * weight(queue, longest)) {
            flow = own; /* the difference between the flow of this place and the longest flow is too small on this
                         * level; continue with the children of the flow of this place */
            continue;
        }
        while (longest->level < queue->levels) longest = longest_child(queue, longest);
        return longest->tail;
    }
    return NULL;
}

/* ---- Counts ---- */

size_t queue_length(const Queue *queue) { return queue->root->queued; }

size_t queue_class_length(const Queue *queue, uint64_t class) {
    for (QueueFlow *at = queue->root->first_child; at; at = at->sibling_next)
        if (at->key == class) return at->queued;
    return 0;
}

size_t queue_flow_length(Queue *queue, const QueuePlace *place, int level) {
    QueueFlow *flow = queue->root;
    for (int i = 0; i < level && flow; i++) flow = find(queue, flow, place->keys[i]);
    return flow ? flow->queued : 0;
}

size_t queue_flows(const Queue *queue, int level) { return queue->counts[level]; }

size_t queue_out(const Queue *queue) { return queue->root->out; }

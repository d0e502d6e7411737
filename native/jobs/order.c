/* Each name in use has one order, and each order has one queue of waiting nodes. An order exists until its last node
 * has ended. */
#include "jobs/order.h"

struct Order {
    RedisModuleString *name;
    Queue *kept;
    int busy;
};

static RedisModuleDict *orders;

Order *order_find(RedisModuleString *name) {
    if (!orders) orders = RedisModule_CreateDict(NULL);
    Order *order = RedisModule_DictGet(orders, name, NULL);
    if (order) return order;
    order = RedisModule_Calloc(1, sizeof *order);
    order->name = RedisModule_CreateStringFromString(NULL, name);
    order->kept = queue_new((QueueAllocator){RedisModule_Alloc, RedisModule_Free}, 1);
    RedisModule_DictSet(orders, name, order);
    return order;
}

int order_enter(Order *order, QueueNode *node) {
    if (!order->busy) {
        order->busy = 1;
        return 1;
    }
    queue_push(order->kept, node, &(QueuePlace){{0}});
    return 0;
}

Queue *order_queue(Order *order) { return order->kept; }

QueueNode *order_next(Order *order) {
    QueueNode *node = queue_pop(order->kept);
    if (node) return node;
    RedisModule_DictDel(orders, order->name, NULL);
    RedisModule_FreeString(NULL, order->name);
    queue_free(order->kept);
    RedisModule_Free(order);
    return NULL;
}

size_t order_kept(void) {
    if (!orders || !RedisModule_DictSize(orders)) return 0;
    size_t count = 0;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(orders, "^", NULL, 0);
    void *order;
    while (RedisModule_DictNextC(iterator, NULL, &order)) count += queue_length(((Order *)order)->kept);
    RedisModule_DictIteratorStop(iterator);
    return count;
}

size_t order_kept_of(RedisModuleString *name) {
    Order *order = orders ? RedisModule_DictGet(orders, name, NULL) : NULL;
    return order ? queue_length(order->kept) : 0;
}

QueueNode *order_rival(size_t besides) {
    if (!orders) return NULL;
    Queue *longest = NULL;
    RedisModuleDictIter *iterator = RedisModule_DictIteratorStartC(orders, "^", NULL, 0);
    Order *order;
    while (RedisModule_DictNextC(iterator, NULL, (void **)&order))
        if (!longest || queue_length(order->kept) > queue_length(longest)) longest = order->kept;
    RedisModule_DictIteratorStop(iterator);
    /* no flow has this place, so queue_rival returns the newest node */
    return longest && queue_length(longest) > besides + 1 ? queue_rival(longest, &(QueuePlace){{1}}) : NULL;
}

/* The fair queue on its own, under the sanitizers. */
#include "jobs/queue.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct Item {
    QueueNode node;
    uint64_t key;
    int number;
} Item;

static const QueueAllocator ALLOCATOR = {malloc, free};

static Item *pop(Queue *queue) { return (Item *)queue_pop(queue); }

static void test_empty(void) {
    Queue *queue = queue_new(ALLOCATOR);
    CHECK(!queue_pop(queue) && queue_length(queue) == 0 && queue_flows(queue) == 0);
    queue_free(queue);
}

static void test_one_flow_is_first_in_first_out(void) {
    Queue *queue = queue_new(ALLOCATOR);
    Item items[5] = {0};
    for (int i = 0; i < 5; i++) queue_push(queue, &items[i].node, 7);
    for (int i = 0; i < 5; i++) CHECK(pop(queue) == &items[i]);
    CHECK(queue_flows(queue) == 0);
    queue_free(queue);
}

static void test_bulk_does_not_starve_a_small_flow(void) {
    Queue *queue = queue_new(ALLOCATOR);
    Item bulk[100] = {0}, small = {0}, other[2] = {0};
    for (int i = 0; i < 100; i++) queue_push(queue, &bulk[i].node, 1);
    queue_push(queue, &small.node, 2);
    queue_push(queue, &other[0].node, 3);
    queue_push(queue, &other[1].node, 3);
    CHECK(pop(queue) == &bulk[0] && pop(queue) == &small && pop(queue) == &other[0]);
    CHECK(pop(queue) == &bulk[1] && pop(queue) == &other[1] && pop(queue) == &bulk[2]);
    for (int i = 3; i < 100; i++) CHECK(pop(queue) == &bulk[i]);
    queue_free(queue);
}

static void test_removal_from_anywhere(void) {
    Queue *queue = queue_new(ALLOCATOR);
    Item items[4] = {0}, alone = {0};
    for (int i = 0; i < 4; i++) queue_push(queue, &items[i].node, 1);
    queue_push(queue, &alone.node, 2);
    queue_remove(queue, &items[1].node);
    queue_remove(queue, &items[3].node);
    queue_remove(queue, &alone.node);
    CHECK(queue_length(queue) == 2 && queue_flows(queue) == 1);
    queue_remove(queue, &items[0].node);
    CHECK(pop(queue) == &items[2] && !queue_pop(queue));
    queue_free(queue);
}

static void test_front_goes_before_everything(void) {
    Queue *queue = queue_new(ALLOCATOR);
    Item items[6] = {0};
    queue_push(queue, &items[0].node, 1);
    queue_push(queue, &items[1].node, 2);
    queue_push(queue, &items[2].node, 3);
    queue_push_front(queue, &items[3].node, 2);
    queue_push_front(queue, &items[4].node, 4);
    queue_push_front(queue, &items[5].node, 4);
    CHECK(pop(queue) == &items[5] && pop(queue) == &items[3]);
    CHECK(pop(queue) == &items[0] && pop(queue) == &items[2] && pop(queue) == &items[4] && pop(queue) == &items[1]);
    queue_free(queue);
}

static void test_lanes_take_turns(void) {
    Queue *lanes[2] = {queue_new(ALLOCATOR), queue_new(ALLOCATOR)};
    Item a[10] = {0}, b[3] = {0};
    int turn = 0, from_b = 0;
    for (int i = 0; i < 10; i++) queue_push(lanes[0], &a[i].node, (uint64_t)i);
    for (int i = 0; i < 3; i++) queue_push(lanes[1], &b[i].node, 0);
    for (int i = 0; i < 6; i++) {
        Item *item = (Item *)queue_pop_lanes(lanes, 2, &turn);
        from_b += item >= b && item < b + 3;
    }
    CHECK(from_b == 3);
    for (int i = 0; i < 7; i++) CHECK(queue_pop_lanes(lanes, 2, &turn));
    CHECK(!queue_pop_lanes(lanes, 2, &turn));
    queue_free(lanes[0]);
    queue_free(lanes[1]);
}

/* Compares with a plain count per key: the queue loses nothing, returns nothing twice, keeps the order within a flow,
 * and serves no flow twice in a row while another one waits. */
static void test_random_operations(unsigned seed) {
    enum { ITEMS = 2000, KEYS = 300 };
    static Item items[ITEMS];
    Queue *queue = queue_new(ALLOCATOR);
    int queued = 0, order = 0;
    srand(seed);
    for (int i = 0; i < ITEMS; i++) items[i] = (Item){.key = (uint64_t)(rand() % KEYS) * 0x9e3779b97f4a7c15ULL};
    for (int step = 0; step < 20000; step++) {
        Item *item = &items[rand() % ITEMS];
        int what = rand() % 3;
        if (what == 0 && !item->node.flow) {
            item->number = order++;
            queue_push(queue, &item->node, item->key);
            queued++;
        } else if (what == 1 && item->node.flow) {
            queue_remove(queue, &item->node);
            queued--;
        } else if (what == 2 && queued) {
            size_t flows = queue_flows(queue);
            Item *first = pop(queue), *second = flows > 1 ? pop(queue) : NULL;
            CHECK(first && !first->node.flow);
            CHECK(!second || second->key != first->key);
            queued -= 1 + (second != NULL);
            for (int i = 0; i < ITEMS; i++)
                if (items[i].node.flow && items[i].key == first->key) CHECK(items[i].number > first->number);
        }
        CHECK(queue_length(queue) == (size_t)queued);
    }
    while (queue_pop(queue)) queued--;
    CHECK(queued == 0 && queue_flows(queue) == 0);
    queue_free(queue);
}

int main(void) {
    test_empty();
    test_one_flow_is_first_in_first_out();
    test_bulk_does_not_starve_a_small_flow();
    test_removal_from_anywhere();
    test_front_goes_before_everything();
    test_lanes_take_turns();
    for (unsigned seed = 1; seed <= 3; seed++) test_random_operations(seed);
    return 0;
}

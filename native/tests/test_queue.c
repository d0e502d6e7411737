/* Tests of the fair queue, with sanitizers. jobs/queue.h defines flow, place, outstanding and neighbor. */
#include "jobs/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

typedef struct Item {
    QueueNode node;
    QueuePlace place;
    int number;
} Item;

static const QueueAllocator ALLOCATOR = {malloc, free};

static Item *pop(Queue *queue) { return (Item *)queue_pop(queue); }

static void push(Queue *queue, Item *item, uint64_t key) { queue_push(queue, &item->node, &(QueuePlace){{key}}); }

static void push_front(Queue *queue, Item *item, uint64_t key) {
    queue_push_front(queue, &item->node, &(QueuePlace){{key}});
}

/* Queues an item of a client. After the pop, the cost of the item is outstanding. */
static void send(Queue *queue, Item *item, uint64_t class, uint64_t user, uint64_t name, uint64_t connection,
                 uint32_t cost) {
    item->place = (QueuePlace){{class, user, name, connection}};
    item->node.cost = item->node.hold.cost = cost;
    queue_push(queue, &item->node, &item->place);
}

static Queue *clients_queue(uint32_t whole, uint32_t shared, uint64_t linger) {
    Queue *queue = queue_new(ALLOCATOR, QUEUE_LEVELS);
    queue_limit(queue, (QueueLimits){whole, shared, linger});
    return queue;
}

static void test_empty(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    CHECK(!queue_pop(queue) && !queue_ready(queue) && queue_length(queue) == 0 && queue_flows(queue, 1) == 0);
    queue_free(queue);
}

static void test_one_flow_is_first_in_first_out(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    Item items[5] = {0};
    for (int i = 0; i < 5; i++) push(queue, &items[i], 7);
    for (int i = 0; i < 5; i++) CHECK(pop(queue) == &items[i]);
    CHECK(queue_flows(queue, 1) == 0);
    queue_free(queue);
}

static void test_bulk_does_not_starve_a_small_flow(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    Item bulk[100] = {0}, small = {0}, other[2] = {0};
    for (int i = 0; i < 100; i++) push(queue, &bulk[i], 1);
    push(queue, &small, 2);
    push(queue, &other[0], 3);
    push(queue, &other[1], 3);
    CHECK(pop(queue) == &bulk[0] && pop(queue) == &small && pop(queue) == &other[0]);
    CHECK(pop(queue) == &bulk[1] && pop(queue) == &other[1] && pop(queue) == &bulk[2]);
    for (int i = 3; i < 100; i++) CHECK(pop(queue) == &bulk[i]);
    queue_free(queue);
}

static void test_removal_from_anywhere(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    Item items[4] = {0}, alone = {0};
    for (int i = 0; i < 4; i++) push(queue, &items[i], 1);
    push(queue, &alone, 2);
    queue_remove(queue, &items[1].node);
    queue_remove(queue, &items[3].node);
    queue_remove(queue, &alone.node);
    CHECK(queue_length(queue) == 2 && queue_flows(queue, 1) == 1);
    queue_remove(queue, &items[0].node);
    CHECK(pop(queue) == &items[2] && !queue_pop(queue));
    queue_free(queue);
}

static void test_front_goes_before_everything(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    Item items[6] = {0};
    push(queue, &items[0], 1);
    push(queue, &items[1], 2);
    push(queue, &items[2], 3);
    push_front(queue, &items[3], 2);
    push_front(queue, &items[4], 4);
    push_front(queue, &items[5], 4);
    CHECK(pop(queue) == &items[5] && pop(queue) == &items[3]);
    CHECK(pop(queue) == &items[0] && pop(queue) == &items[2] && pop(queue) == &items[4] && pop(queue) == &items[1]);
    queue_free(queue);
}

/* Two flows that are never empty get the same share, for any cost of their items. */
static void test_turns_are_by_cost(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    Item small[400] = {0}, large[40] = {0};
    long of_small = 0, of_large = 0;
    for (int i = 0; i < 400; i++) push(queue, &small[i], 1);
    for (int i = 0; i < 40; i++) {
        large[i].node.cost = 10;
        push(queue, &large[i], 2);
    }
    while (of_small < 300) {
        Item *item = pop(queue);
        if (item >= large && item < large + 40) of_large += 10;
        else of_small += 1;
        CHECK(of_small - of_large <= 10 && of_large - of_small <= 10);
    }
    while (queue_pop(queue)) continue;
    queue_free(queue);
}

/* A flow that was empty for a time gets no extra turns afterwards. */
static void test_a_newcomer_begins_where_the_others_stand(void) {
    Queue *queue = queue_new(ALLOCATOR, 1);
    Item items[30] = {0}, late[10] = {0};
    for (int i = 0; i < 30; i++) push(queue, &items[i], 1);
    for (int i = 0; i < 20; i++) CHECK(pop(queue) == &items[i]);
    for (int i = 0; i < 10; i++) push(queue, &late[i], 2);
    for (int i = 0; i < 10; i++) {
        Item *one = pop(queue), *other = pop(queue);
        CHECK((one == &late[i] && other == &items[20 + i]) || (one == &items[20 + i] && other == &late[i]));
    }
    queue_free(queue);
}

/* A user with a thousand connections or a thousand names has the share of one user. */
static void test_users_take_turns_and_not_their_connections(void) {
    for (int by_name = 0; by_name < 2; by_name++) {
        Queue *queue = clients_queue(1000000, 1000000, 0);
        static Item many[1000], one[50];
        memset(many, 0, sizeof many);
        memset(one, 0, sizeof one);
        for (uint64_t i = 0; i < 1000; i++) send(queue, &many[i], 0, 7, by_name ? i : 0, i, 1);
        for (int i = 0; i < 50; i++) send(queue, &one[i], 0, 8, 0, 5000, 1);
        CHECK(queue_flows(queue, 2) == 2 && queue_flows(queue, QUEUE_LEVELS) == 1001);
        for (int i = 0; i < 50; i++) {
            CHECK(pop(queue) == &many[i]);
            CHECK(pop(queue) == &one[i]);
        }
        for (int i = 50; i < 1000; i++) CHECK(pop(queue) == &many[i]);
        for (int i = 0; i < 1000; i++) queue_release(queue, &many[i].node.hold);
        for (int i = 0; i < 50; i++) queue_release(queue, &one[i].node.hold);
        CHECK(queue_out(queue) == 0 && queue_flows(queue, 2) == 0);
        queue_free(queue);
    }
}

static void test_bulk_gets_its_share_and_no_more(void) {
    Queue *queue = clients_queue(1000000, 1000000, 0);
    Item bulk[20] = {0}, others[80] = {0};
    int of_bulk = 0;
    for (int i = 0; i < 20; i++) send(queue, &bulk[i], QUEUE_BULK, 1, 0, 1, 3);
    for (int i = 0; i < 80; i++) send(queue, &others[i], QUEUE_INTERACTIVE, (uint64_t)i % 4, 0, 1, 3);
    CHECK(queue_class_length(queue, QUEUE_BULK) == 20 && queue_class_length(queue, QUEUE_INTERACTIVE) == 80);
    for (int i = 0; i < 45; i++) {
        Item *item = pop(queue);
        of_bulk += item >= bulk && item < bulk + 20;
        queue_release(queue, &item->node.hold);
    }
    CHECK(of_bulk == 5); /* one of every 1 + QUEUE_INTERACTIVE_WEIGHT turns */
    for (Item *item; (item = pop(queue));) queue_release(queue, &item->node.hold);
    queue_free(queue);
}

static void test_a_flow_with_neighbours_has_little_out(void) {
    Queue *queue = clients_queue(8, 1, 10);
    Item many[20] = {0}, one[3] = {0};
    for (int i = 0; i < 20; i++) send(queue, &many[i], 0, 7, 0, (uint64_t)i, 1);
    for (int i = 0; i < 8; i++) CHECK(pop(queue) == &many[i]);
    CHECK(!queue_ready(queue) && !pop(queue) && queue_out(queue) == 8); /* the limit of the whole queue */
    send(queue, &one[0], 0, 8, 0, 99, 1);
    CHECK(!queue_ready(queue));
    queue_release(queue, &many[0].node.hold);
    CHECK(pop(queue) == &one[0]); /* not the ninth item of user 7, whose flow has seven outstanding items */
    for (int i = 1; i < 7; i++) {
        queue_release(queue, &many[i].node.hold);
        CHECK(!queue_ready(queue));
    }
    queue_release(queue, &many[7].node.hold);
    CHECK(pop(queue) == &many[8] && !pop(queue));
    queue_release(queue, &one[0].node.hold);
    queue_tick(queue, 9); /* the flow of user 8 became empty at time 0, so it still counts as a neighbor */
    CHECK(!queue_ready(queue));
    queue_release(queue, &many[8].node.hold);
    CHECK(pop(queue) == &many[9] && !pop(queue));
    queue_tick(queue, 10);
    CHECK(queue_flows(queue, 2) == 1);
    queue_release(queue, &many[9].node.hold);
    for (int i = 10; i < 18; i++) CHECK(pop(queue) == &many[i]);
    CHECK(!pop(queue));
    for (int i = 10; i < 18; i++) queue_release(queue, &many[i].node.hold);
    CHECK(pop(queue) == &many[18] && pop(queue) == &many[19]);
    queue_release(queue, &many[18].node.hold);
    queue_release(queue, &many[19].node.hold);
    queue_tick(queue, 30);
    CHECK(queue_flows(queue, 1) == 0);
    queue_free(queue);
}

/* A user with small items may have the same outstanding cost as a neighbor with one large item. With a lower limit, the
 * user with small items would have a disadvantage, because the worker behind the queue serves items in the order of
 * their arrival. */
static void test_small_items_together_are_as_large_as_a_neighbours(void) {
    Queue *queue = clients_queue(100, 1, 10);
    Item large[2] = {0}, small[20] = {0};
    send(queue, &large[0], 0, 7, 0, 1, 8);
    send(queue, &large[1], 0, 7, 0, 2, 8);
    for (int i = 0; i < 20; i++) send(queue, &small[i], 0, 8, 0, 99, 1);
    int of_small = 0;
    for (Item *item; (item = pop(queue));) of_small += item >= small && item < small + 20;
    CHECK(queue_length(queue) == 1 + 20 - (size_t)of_small);
    CHECK(of_small >= 3 && of_small <= 8); /* the recent maximum falls while small items are popped */
    queue_release(queue, &large[0].node.hold);
    for (int i = 0; i < of_small; i++) queue_release(queue, &small[i].node.hold);
    for (Item *item; (item = pop(queue));) queue_release(queue, &item->node.hold);
    queue_free(queue);
}

static void test_bulk_has_neighbours_while_there_are_others(void) {
    Queue *queue = clients_queue(8, 1, 10);
    Item bulk[10] = {0}, other[3] = {0};
    for (int i = 0; i < 10; i++) send(queue, &bulk[i], QUEUE_BULK, 7, 0, 1, 1);
    for (int i = 0; i < 3; i++) send(queue, &other[i], QUEUE_INTERACTIVE, 7, 0, 1, 1);
    int of_bulk = 0, of_other = 0;
    for (Item *item; (item = pop(queue));) {
        if (item >= bulk && item < bulk + 10) of_bulk++;
        else of_other++;
    }
    CHECK(of_bulk == 1 && of_other == 3);
    for (int i = 0; i < 3; i++) queue_release(queue, &other[i].node.hold);
    queue_release(queue, &bulk[0].node.hold);
    for (Item *item; (item = pop(queue));) queue_release(queue, &item->node.hold);
    CHECK(queue_length(queue) == 0);
    queue_free(queue);
}

static void test_one_that_went_another_way_counts_as_out(void) {
    Queue *queue = clients_queue(2, 1, 10);
    Item held[3] = {0}, waits = {0};
    for (int i = 0; i < 3; i++) {
        send(queue, &held[i], 0, 7, 0, (uint64_t)i, 1);
        queue_remove(queue, &held[i].node);
        queue_hold(queue, &held[i].node, &held[i].place);
        CHECK(!held[i].node.flow && queue_out(queue) == (size_t)i + 1 && !queue_length(queue));
    }
    CHECK(queue_flows(queue, QUEUE_LEVELS) == 0);
    send(queue, &waits, 0, 8, 0, 9, 1);
    for (int i = 0; i < 2; i++) {
        CHECK(!queue_ready(queue)); /* the outstanding cost is above the limit of the whole queue */
        queue_release(queue, &held[i].node.hold);
    }
    CHECK(pop(queue) == &waits);
    queue_release(queue, &waits.node.hold);
    queue_release(queue, &held[2].node.hold);
    CHECK(!queue_out(queue));
    queue_free(queue);
}

static void test_one_that_costs_nothing_out_never_waits(void) {
    Queue *queue = clients_queue(1, 1, 10);
    Item large = {0}, free_one = {0}, second = {0};
    send(queue, &large, 0, 7, 0, 1, 5);
    CHECK(pop(queue) == &large);
    send(queue, &second, 0, 8, 0, 1, 1);
    CHECK(!pop(queue));
    send(queue, &free_one, 0, 9, 0, 1, 0);
    queue_remove(queue, &second.node);
    CHECK(pop(queue) == &free_one && !free_one.node.hold.flow && queue_flows(queue, 2) == 1);
    queue_release(queue, &large.node.hold);
    queue_free(queue);
}

static void test_idle_flows_are_few(void) {
    Queue *queue = clients_queue(100, 1, 1000000);
    Item item = {0};
    for (uint64_t i = 0; i < 3 * QUEUE_MAX_IDLE; i++) {
        send(queue, &item, 0, i % 5, i, i, 1);
        CHECK(pop(queue) == &item);
        queue_release(queue, &item.node.hold);
    }
    CHECK(queue_flows(queue, 3) == QUEUE_MAX_IDLE && queue_flows(queue, QUEUE_LEVELS) == 0);
    queue_tick(queue, 1000000);
    CHECK(queue_flows(queue, 3) == 0 && queue_flows(queue, 1) == 0);
    queue_free(queue);
}

static void test_rival_has_most(void) {
    Queue *queue = clients_queue(100, 1, 10);
    Item a[6] = {0}, b[2] = {0}, bulk = {0};
    for (int i = 0; i < 6; i++) send(queue, &a[i], 0, 7, i < 4, (uint64_t)(i < 3), 1);
    QueuePlace new_user = {{0, 9, 0, 0}}, same_name = {{0, 7, 1, 1}}, other_name = {{0, 7, 5, 0}};
    CHECK(queue_rival(queue, &new_user) ==
          &a[2].node); /* the newest item of the longest connection (with the most items) of the longest name */
    CHECK(queue_rival(queue, &other_name) == &a[2].node); /* a rival of the same user */
    CHECK(!queue_rival(queue, &same_name));
    CHECK(queue_flow_length(queue, &same_name, 1) == queue_length(queue) && !queue_flow_length(queue, &new_user, 2));
    for (int i = 0; i < 2; i++) send(queue, &b[i], 0, 8, 0, 0, 1);
    CHECK(queue_rival(queue, &(QueuePlace){{0, 8, 0, 3}}) == &a[2].node);
    CHECK(!queue_rival(
        queue, &(QueuePlace){{QUEUE_BULK, 8, 0, 3}})); /* 8 interactive items have the weight of one bulk item */
    send(queue, &bulk, QUEUE_BULK, 1, 0, 0, 1);
    queue_remove(queue, &b[0].node);
    CHECK(!queue_rival(queue, &(QueuePlace){{QUEUE_BULK, 8, 0, 3}}));
    queue_remove(queue, &a[5].node);
    queue_remove(queue, &a[4].node);
    CHECK(queue_rival(queue, &(QueuePlace){{0, 8, 0, 3}}) == &bulk.node);
    for (Item *item; (item = pop(queue));) queue_release(queue, &item->node.hold);
    queue_free(queue);
}

/* If all users have the same number of items, queue_rival compares the connections of the user. So one connection of a
 * user does not block the other connections of this user. */
static void test_rival_below_a_flow_that_has_its_share(void) {
    Queue *queue = clients_queue(100, 1, 10);
    Item items[2][4] = {0};
    for (uint64_t user = 0; user < 2; user++)
        for (int i = 0; i < 4; i++) send(queue, &items[user][i], 0, user, 0, (uint64_t)(i > 2), 1);
    for (uint64_t user = 0; user < 2; user++) {
        CHECK(queue_rival(queue, &(QueuePlace){{0, user, 0, 1}}) == &items[user][2].node);
        CHECK(!queue_rival(queue, &(QueuePlace){{0, user, 0, 0}}));
    }
    for (Item *item; (item = pop(queue));) queue_release(queue, &item->node.hold);
    queue_free(queue);
}

/* Compares the queue with a plain count of the items of each key. The queue loses no item, returns no item twice,
 * preserves the order within a flow, and serves no flow twice in a row while another flow has items. */
static void test_random_operations(unsigned seed) {
    enum { ITEMS = 2000, KEYS = 300 };
    static Item items[ITEMS];
    Queue *queue = queue_new(ALLOCATOR, 1);
    int queued = 0, order = 0;
    srand(seed);
    for (int i = 0; i < ITEMS; i++) items[i] = (Item){.place = {{(uint64_t)(rand() % KEYS) * 0x9e3779b97f4a7c15ULL}}};
    for (int step = 0; step < 20000; step++) {
        Item *item = &items[rand() % ITEMS];
        int what = rand() % 3;
        if (what == 0 && !item->node.flow) {
            item->number = order++;
            queue_push(queue, &item->node, &item->place);
            queued++;
        } else if (what == 1 && item->node.flow) {
            queue_remove(queue, &item->node);
            queued--;
        } else if (what == 2 && queued) {
            size_t flows = queue_flows(queue, 1);
            Item *first = pop(queue), *second = flows > 1 ? pop(queue) : NULL;
            CHECK(first && !first->node.flow);
            CHECK(!second || second->place.keys[0] != first->place.keys[0]);
            queued -= 1 + (second != NULL);
            for (int i = 0; i < ITEMS; i++)
                if (items[i].node.flow && items[i].place.keys[0] == first->place.keys[0])
                    CHECK(items[i].number > first->number);
        }
        CHECK(queue_length(queue) == (size_t)queued);
    }
    while (queue_pop(queue)) queued--;
    CHECK(queued == 0 && queue_flows(queue, 1) == 0);
    queue_free(queue);
}

/* Runs all operations on all levels. The outstanding cost is correct and exceeds the limit only with one large item. If
 * queue_ready returns 1, an item can be popped. If items are queued and no item is outstanding, an item can be popped.
 */
static void test_random_operations_with_limits(unsigned seed) {
    enum { ITEMS = 500, WHOLE = 24, LARGEST = 9 };
    static Item items[ITEMS];
    static int out[ITEMS];
    Queue *queue = clients_queue(WHOLE, 2, 50);
    size_t queued = 0, cost_out = 0;
    memset(items, 0, sizeof items);
    memset(out, 0, sizeof out);
    srand(seed);
    for (int step = 0; step < 60000; step++) {
        int at = rand() % ITEMS;
        Item *item = &items[at];
        queue_tick(queue, (uint64_t)step / 4);
        switch (rand() % 5) {
        case 0:
        case 1:
            if (item->node.flow || out[at]) break;
            item->place = (QueuePlace){
                {(uint64_t)(rand() % 4 == 0), (uint64_t)(rand() % 4), (uint64_t)(rand() % 3), (uint64_t)(rand() % 6)}};
            item->node.cost = (uint32_t)(rand() % LARGEST);
            item->node.hold.cost = item->node.cost;
            queue_push(queue, &item->node, &item->place);
            queued++;
            break;
        case 2:
            if (!item->node.flow) break;
            queue_remove(queue, &item->node);
            queued--;
            break;
        case 3:
            if (!out[at]) break;
            cost_out -= item->node.hold.cost;
            queue_release(queue, &item->node.hold);
            out[at] = 0;
            if (rand() % 4) break;
            queue_push_front(queue, &item->node, &item->place); /* as after the death of the worker that had the item */
            queued++;
            break;
        default: {
            int ready = queue_ready(queue);
            Item *next = pop(queue);
            CHECK(ready == (next != NULL));
            CHECK(next || !queued || cost_out);
            if (!next) break;
            CHECK(!next->node.flow && !out[next - items]);
            queued--;
            out[next - items] = next->node.hold.flow != NULL;
            CHECK(out[next - items] == (next->node.hold.cost > 0));
            CHECK(!next->node.hold.cost || !cost_out || cost_out + next->node.hold.cost <= WHOLE);
            cost_out += next->node.hold.cost;
        }
        }
        CHECK(queue_length(queue) == queued && queue_out(queue) == cost_out);
    }
    for (int more = 1; more;) {
        more = 0;
        for (Item *item; (item = pop(queue)); more = 1) out[item - items] = item->node.hold.flow != NULL;
        for (int i = 0; i < ITEMS; i++) {
            if (!out[i]) continue;
            queue_release(queue, &items[i].node.hold);
            out[i] = 0;
            more = 1;
        }
    }
    CHECK(queue_length(queue) == 0 && queue_out(queue) == 0 && queue_flows(queue, QUEUE_LEVELS) == 0);
    queue_tick(queue, 1000000);
    for (int level = 1; level <= QUEUE_LEVELS; level++) CHECK(queue_flows(queue, level) == 0);
    queue_free(queue);
}

int main(void) {
    test_empty();
    test_one_flow_is_first_in_first_out();
    test_bulk_does_not_starve_a_small_flow();
    test_removal_from_anywhere();
    test_front_goes_before_everything();
    test_turns_are_by_cost();
    test_a_newcomer_begins_where_the_others_stand();
    test_users_take_turns_and_not_their_connections();
    test_bulk_gets_its_share_and_no_more();
    test_a_flow_with_neighbours_has_little_out();
    test_small_items_together_are_as_large_as_a_neighbours();
    test_bulk_has_neighbours_while_there_are_others();
    test_one_that_went_another_way_counts_as_out();
    test_one_that_costs_nothing_out_never_waits();
    test_idle_flows_are_few();
    test_rival_has_most();
    test_rival_below_a_flow_that_has_its_share();
    for (unsigned seed = 1; seed <= 3; seed++) test_random_operations(seed);
    for (unsigned seed = 1; seed <= 5; seed++) test_random_operations_with_limits(seed);
    return 0;
}

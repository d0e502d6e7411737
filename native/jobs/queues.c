/* Each queue is a fair queue (queue.h). The queues of clients have the levels of flows.h. The other queues have one
 * level.
 *
 * RETRIES. When a worker dies, each of its running jobs may be the cause. The module retries these jobs before all
 * other jobs, one after the other. So if a retry kills the next worker, usually no other retry runs at the same time
 * and fails with it. A retry delays the next retry for at most RETRY_MS; after this time, both may run at the same
 * time. */
#include "jobs/queues.h"

#include "jobs/flows.h"
#include "server/config.h"
#include "server/server.h"

/* RETRY_MS: see RETRIES. LINGER_MS: a user without jobs for this time no longer counts as a neighbor (queue.h), so the
 * queue no longer limits other users because of this user. */
enum { RETRY_MS = 200, LINGER_MS = 10000, LEVEL_OF_USERS = 2 };

static Queue *queues[QUEUE_COUNT];
static Queue *retries[QUEUE_COUNT]; /* the jobs to retry, by the queue that they were in first */
static const Job *running_retry;    /* the retry that was handed out last; NULL when it has ended */
static int turn, retry_turn;
static void (*wake)(void);

void queues_on_load(void) {
    QueueAllocator allocator = {RedisModule_Alloc, RedisModule_Free};
    for (int i = 0; i < QUEUE_COUNT; i++) {
        int of_clients = i == QUEUE_OF_EARLY || i == QUEUE_OF_CLIENTS || i == QUEUE_OF_MODELS ||
                         i == QUEUE_OF_FUNCTIONS;
        queues[i] = queue_new(allocator, of_clients ? QUEUE_LEVELS : 1);
        retries[i] = queue_new(allocator, 1);
    }
}

void queues_attach(void (*wake_link)(void)) { wake = wake_link; }

/* ---- Lengths ---- */

size_t queues_length(QueueName name) { return queue_length(queues[name]) + queue_length(retries[name]); }

size_t queues_functions(void) { return queues_length(QUEUE_OF_FUNCTIONS) + order_kept(); }

size_t queues_bulk(void) {
    return queue_class_length(queues[QUEUE_OF_EARLY], QUEUE_BULK) +
           queue_class_length(queues[QUEUE_OF_CLIENTS], QUEUE_BULK) +
           queue_class_length(queues[QUEUE_OF_MODELS], QUEUE_BULK) +
           queue_class_length(queues[QUEUE_OF_FUNCTIONS], QUEUE_BULK);
}

size_t queues_users(void) {
    size_t asking = queue_flows(queues[QUEUE_OF_CLIENTS], LEVEL_OF_USERS);
    size_t running = queue_flows(queues[QUEUE_OF_MODELS], LEVEL_OF_USERS);
    return asking > running ? asking : running;
}

size_t queues_ahead(void) { return queue_out(queues[QUEUE_OF_CLIENTS]) + queue_out(queues[QUEUE_OF_MODELS]); }

QueueName queues_of_client(const JobClass *class) {
    if (class->before_ready) return QUEUE_OF_EARLY;
    return class->of_user ? QUEUE_OF_FUNCTIONS : class->of_model ? QUEUE_OF_MODELS : QUEUE_OF_CLIENTS;
}

/* ---- Adding and removing ---- */

static QueueName queue_of(const Job *job) {
    int name = 0;
    while (name < QUEUE_COUNT - 1 && queues[name] != job->queue) name++;
    return (QueueName)name;
}

static int any_retry(void) {
    for (int i = 0; i < QUEUE_COUNT; i++)
        if (queue_length(retries[i])) return 1;
    return 0;
}

void queues_add(Job *job, QueueName name) {
    job->queue = queues[name];
    if (job->order && !order_enter(job->order, &job->node)) {
        job->queue = order_queue(job->order);
        return;
    }
    queue_push(job->queue, &job->node, &job->place);
    wake();
}

int jobs_notify(const JobClass *class, void *data) {
    QueueName name = class->before_ready ? QUEUE_OF_NOTICES : class->with_events ? QUEUE_OF_EVENTS : QUEUE_OF_CLIENTS;
    if ((long long)queue_length(queues[name]) >= config.max_events) {
        if (class->free) class->free(data);
        return 0;
    }
    queues_add(job_new(class, data, -1), name);
    return 1;
}

void queues_again(Job *job, int innocent) {
    static const QueuePlace LINE = {{0}};
    queue_release(job->queue, &job->node.hold);
    if (innocent || job->queue == queues[QUEUE_OF_EARLY]) {
        queue_push_front(job->queue, &job->node, &job->place);
        return;
    }
    job->retry = 1;
    queue_push_front(retries[queue_of(job)], &job->node, &LINE);
}

void queues_remove(Job *job) { queue_remove(job->retry ? retries[queue_of(job)] : job->queue, &job->node); }

void queues_next_in_order(Order *order, Queue *queue) {
    if (!order || queue == order_queue(order)) return;
    Job *next = (Job *)order_next(order);
    if (!next) return;
    next->queue = queue;
    queue_push(next->queue, &next->node, &next->place);
    wake();
}

void queues_release(Queue *queue, QueueHold *hold) {
    if (!hold->flow) return;
    queue_release(queue, hold);
    if (queue_length(queue)) wake();
}

void queues_retry_ended(const Job *job) {
    if (running_retry != job) return;
    running_retry = NULL;
    if (any_retry()) wake();
}

/* The limit for QUEUE_OF_FUNCTIONS includes jobs that wait in an order (order.h), but queue_rival does not count these
 * jobs. So if queue_rival finds no job to end, order_rival compares the longest order with the user of `place`. */
Job *queues_rival(const JobClass *class, void *data, QueueName name, const QueuePlace *place) {
    Job *rival = (Job *)queue_rival(queues[name], place);
    if (rival || !class->of_user) return rival;
    size_t own = queue_flow_length(queues[name], place, LEVEL_OF_USERS);
    if (class->in_order) own += order_kept_of(class->registration(data));
    return (Job *)order_rival(own);
}

/* ---- The next job ---- */

/* 1: a job of the queue `name` (QueueName) may be handed out now. `ready` is 1 if the worker has called QA.READY. */
static int has_capacity(int name, int ready, const JobsCapacity *capacity) {
    if (name == QUEUE_OF_NOTICES) return 1;
    if (capacity->all <= 0 || (!ready && name != QUEUE_OF_EARLY)) return 0;
    return name == QUEUE_OF_FUNCTIONS ? capacity->functions > 0
                                      : name != QUEUE_OF_BACKGROUND || capacity->background > 0;
}

/* Sets the limits for the jobs of each user in the worker (QueueLimits). For jobs that run models, the limits grow with
 * the number of parallel model runs. For user functions, `shared` is twice the number of threads that run functions. */
static void set_limits(void) {
    uint64_t now_ms = RedisModule_MonotonicMicroseconds() / 1000;
    long long runs = config.threads_per_queue * (config.inference_workers > 1 ? config.inference_workers : 1);
    QueueLimits models = {(uint32_t)(config.worker_ahead * runs), (uint32_t)(config.shared_ahead * runs), LINGER_MS};
    QueueLimits functions = {UINT32_MAX, (uint32_t)(2 * config.function_threads), LINGER_MS};
    queue_limit(queues[QUEUE_OF_CLIENTS], models);
    queue_limit(queues[QUEUE_OF_MODELS], models);
    queue_limit(queues[QUEUE_OF_FUNCTIONS], functions);
    queue_tick(queues[QUEUE_OF_CLIENTS], now_ms);
    queue_tick(queues[QUEUE_OF_MODELS], now_ms);
    queue_tick(queues[QUEUE_OF_FUNCTIONS], now_ms);
}

/* Returns the queue (QueueName) of the next retry that may start now. The queues take turns. -1: no retry may start. */
static int next_retry(int ready, const JobsCapacity *capacity) {
    if (!ready) return -1;
    if (running_retry && RedisModule_MonotonicMicroseconds() - running_retry->started_us < RETRY_MS * 1000) return -1;
    for (int i = 0; i < QUEUE_COUNT; i++) {
        int name = (retry_turn + i) % QUEUE_COUNT;
        if (queue_length(retries[name]) && has_capacity(name, ready, capacity)) return name;
    }
    return -1;
}

int queues_available(int ready, const JobsCapacity *capacity) {
    set_limits();
    if (next_retry(ready, capacity) >= 0) return 1;
    for (int i = 0; i < QUEUE_COUNT; i++)
        if (has_capacity(i, ready, capacity) && queue_ready(queues[i])) return 1;
    return 0;
}

static void on_next_retry(RedisModuleCtx *ctx, void *data) { wake(); }

static void use(JobsCapacity *capacity, int name) {
    capacity->functions -= name == QUEUE_OF_FUNCTIONS;
    capacity->background -= name == QUEUE_OF_BACKGROUND;
}

static Job *take_retry(int name, JobsCapacity *capacity) {
    Job *job = (Job *)queue_pop(retries[name]);
    job->retry = 0;
    retry_turn = name + 1;
    running_retry = job;
    queue_hold(job->queue, &job->node, &job->place);
    capacity->all--;
    use(capacity, name);
    if (any_retry()) RedisModule_CreateTimer(server_ctx(), RETRY_MS, on_next_retry, NULL);
    return job;
}

Job *queues_take(int ready, JobsCapacity *capacity) {
    enum { TAKING_TURNS = QUEUE_COUNT - QUEUE_OF_EARLY };
    QueueNode *node = queue_pop(queues[QUEUE_OF_NOTICES]);
    int retry = node ? -1 : next_retry(ready, capacity);
    if (retry >= 0) return take_retry(retry, capacity);
    for (int i = 0; i < TAKING_TURNS && !node; i++) {
        int name = QUEUE_OF_EARLY + (turn + i) % TAKING_TURNS;
        if (!has_capacity(name, ready, capacity) || !(node = queue_pop(queues[name]))) continue;
        turn = (name - QUEUE_OF_EARLY + 1) % TAKING_TURNS;
        use(capacity, name);
    }
    if (node && ((Job *)node)->id) capacity->all--;
    return (Job *)node;
}

/* The queues in which jobs wait, and the choice of the next job. */
#ifndef QA_JOB_QUEUES_H
#define QA_JOB_QUEUES_H

#include "jobs/job_state.h"

/* Before QA.READY the worker gets only notices and jobs of QUEUE_OF_EARLY. Afterwards all queues but that of the
 * notices take turns, as far as the worker has capacity for their jobs. */
typedef enum {
    QUEUE_OF_NOTICES,
    QUEUE_OF_EARLY,      /* jobs that may be handed out before QA.READY */
    QUEUE_OF_CLIENTS,    /* own functions, with a client that waits */
    QUEUE_OF_MODELS,     /* runs of models, with a client that waits */
    QUEUE_OF_EVENTS,     /* own functions and runs of models, without a client */
    QUEUE_OF_FUNCTIONS,  /* user functions with a client that waits */
    QUEUE_OF_BACKGROUND, /* user functions without a client */
    QUEUE_COUNT
} QueueName;

/* How many jobs the worker accepts now. */
typedef struct JobsCapacity {
    long long all;        /* of all kinds; 0: only notices */
    long long functions;  /* of these, user functions with a client that waits */
    long long background; /* of these, user functions without a client */
} JobsCapacity;

/* `wake` wakes a link that waits for jobs. */
void queues_on_load(void);
void queues_attach(void (*wake)(void));

/* Queues a new job at its place; its order may keep it first. */
void queues_add(Job *job, QueueName name);
/* Queues a notice; 0: too many notices are queued, and `data` has been freed. */
int queues_notify(const JobClass *class, void *data);
/* Queues a job again whose worker died or was killed for another job (`innocent`). */
void queues_again(Job *job, int innocent);
void queues_remove(Job *job);

/* 1: a job can be handed out. `ready` 0: only jobs that may be handed out before QA.READY count. */
int queues_available(int ready, const JobsCapacity *capacity);
/* The next job for which the worker has capacity; NULL: no such job is queued. */
Job *queues_take(int ready, JobsCapacity *capacity);

/* A job that was handed out has ended: the next retry may start. */
void queues_retry_ended(const Job *job);
/* The worker no longer works on a job of this queue: another job of the same user may start. */
void queues_release(Queue *queue, QueueHold *hold);
/* The first job of an order, which was in this queue, has ended: the next one may start. */
void queues_next_in_order(Order *order, Queue *queue);

/* For a full queue: the newest job of the user that has most jobs in it, if another user with this place has fewer.
 * NULL: no user has more. */
Job *queues_rival(const JobClass *class, void *data, QueueName name, const QueuePlace *place);

/* How many jobs are queued, including those to retry. */
size_t queues_length(QueueName name);
/* The queue of a job with a client that waits. */
QueueName queues_of_client(const JobClass *class);
size_t queues_functions(void); /* also those that an order keeps */
size_t queues_bulk(void);      /* of clients that do bulk work */
/* Users with jobs of own functions or models, or who had some in the last LINGER_MS: the larger of both numbers. */
size_t queues_users(void);
size_t queues_ahead(void); /* the cost of these jobs that the worker has */

#endif

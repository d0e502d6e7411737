/* The queues of jobs, and the choice of the next job. job.h defines the words: notice, link, hand out, retry. */
#pragma once

#include "jobs/job_state.h"

/* Before the worker has called QA.READY, it gets only the jobs of QUEUE_OF_NOTICES and QUEUE_OF_EARLY. After QA.READY,
 * QUEUE_OF_NOTICES is first, and the other queues take turns if the worker has capacity for their jobs. */
typedef enum {
    QUEUE_OF_NOTICES,    /* notices that may be handed out before QA.READY */
    QUEUE_OF_EARLY,      /* jobs that may be handed out before QA.READY */
    QUEUE_OF_CLIENTS,    /* jobs with a waiting client that are in none of the other queues, such as jobs of own
                          * functions; most other notices */
    QUEUE_OF_MODELS,     /* model runs with a waiting client */
    QUEUE_OF_EVENTS,     /* events of own functions without a client; onregistered jobs; notices of classes
                          * `with_events` */
    QUEUE_OF_FUNCTIONS,  /* jobs of user functions with a waiting client */
    QUEUE_OF_BACKGROUND, /* jobs of user functions without a client */
    QUEUE_COUNT
} QueueName;

/* How many jobs the worker accepts now. */
typedef struct JobsCapacity {
    long long all;        /* jobs of all kinds; 0: only notices */
    long long functions;  /* of these, at most this number of jobs of user functions with a waiting client */
    long long background; /* of these, at most this number of jobs of user functions without a client */
} JobsCapacity;

void queues_on_load(void);
/* Stores `wake`, the function that wakes a link that waits for jobs. Call it before the first job is queued. */
void queues_attach(void (*wake)(void));

/* Queues a new job. An order (order.h) runs its jobs one after the other. If the order of this job has a running job,
 * the new job first waits in the order. */
void queues_add(Job *job, QueueName name);
/* Queues a notice, such as model.drop or cancel. A notice is a job with id 0. The worker gets a notice once and does
 * not answer it. 0: the queue for the notice has qa.max-events jobs or more, and `data` has been freed. */
int jobs_notify(const JobClass *class, void *data);
/* Queues a job again after the death of the worker that had the job. `innocent` 1: the worker was killed because of a
 * different job. */
void queues_again(Job *job, int innocent);
void queues_remove(Job *job);

/* 1: a job can be handed out. If `ready` is 0, only a job that may be handed out before QA.READY counts. */
int queues_available(int ready, const JobsCapacity *capacity);
/* Takes the next job that fits into `capacity` from its queue, and subtracts the job from `capacity`. Notices are not
 * subtracted. `ready` has the same meaning as in queues_available. NULL: no such job is queued. */
Job *queues_take(int ready, JobsCapacity *capacity);

/* Call it when a job that was handed out has ended, so that the next retry can start. */
void queues_retry_ended(const Job *job);
/* Call it when the worker no longer works on a job of this queue, so that another job of the same user can start. */
void queues_release(Queue *queue, QueueHold *hold);
/* Call it when the running job of an order has ended. The next job of the order enters `queue`. */
void queues_next_in_order(Order *order, Queue *queue);

/* For a full queue: returns the job to end so that a job with this class, data and place can enter: usually the newest
 * job of the user with the most jobs. NULL: no user has at least two jobs more than the user of `place`. */
Job *queues_rival(const JobClass *class, void *data, QueueName name, const QueuePlace *place);

/* The number of queued jobs, including jobs to retry. */
size_t queues_length(QueueName name);
/* The queue for a job of this class with a waiting client. */
QueueName queues_of_client(const JobClass *class);
/* The number of queued jobs of user functions with a waiting client, including jobs that wait in an order. */
size_t queues_functions(void);
size_t queues_bulk(void); /* the number of queued jobs of the bulk class (queue.h), without jobs to retry */
/* Counts the users that have, or had in the last 10 s (LINGER_MS in queues.c), jobs of own functions, and the users of
 * jobs of models in the same way. Returns the larger of both numbers. */
size_t queues_users(void);
size_t queues_ahead(void); /* the total outstanding cost (queue.h) of clients' jobs for own functions and models, which
                            * are in the worker now */

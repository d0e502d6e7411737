/* The queues of jobs, and the choice of the next job. */
#pragma once

#include "jobs/job_state.h"

/* Before QA.READY, the worker gets only notices and jobs of QUEUE_OF_EARLY. After QA.READY, notices are first, and the
 * other queues take turns if the worker has capacity for their jobs. */
typedef enum {
    QUEUE_OF_NOTICES,
    QUEUE_OF_EARLY,      /* jobs that may be handed out before QA.READY */
    QUEUE_OF_CLIENTS,    /* jobs of own functions with a waiting client */
    QUEUE_OF_MODELS,     /* model runs with a waiting client */
    QUEUE_OF_EVENTS,     /* jobs of own functions and model runs, without a client */
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

/* `wake` must wake a link that waits for jobs. */
void queues_on_load(void);
void queues_attach(void (*wake)(void));

/* Queues a new job. An order (order.h) runs its jobs one after the other. If the order of this job has a running job,
 * the new job first waits in the order. */
void queues_add(Job *job, QueueName name);
/* Queues a notice (model.drop, unregister, message, cancel). A notice is a job with id 0. The worker gets it once and
 * does not answer it. 0: too many notices are queued, and `data` has been freed. */
int jobs_notify(const JobClass *class, void *data);
/* Queues a job whose worker has died. `innocent` 1: the worker was killed because of a different job. */
void queues_again(Job *job, int innocent);
void queues_remove(Job *job);

/* 1: a job can be handed out. With `ready` 0, this counts only jobs that may be handed out before QA.READY. */
int queues_available(int ready, const JobsCapacity *capacity);
/* Takes the next job that fits into `capacity`. NULL: no such job is queued. */
Job *queues_take(int ready, JobsCapacity *capacity);

/* Call it when a job that was handed out has ended, so that the next retry can start. */
void queues_retry_ended(const Job *job);
/* Call it when the worker no longer works on a job of this queue, so that another job of the same user can start. */
void queues_release(Queue *queue, QueueHold *hold);
/* Call it when the running job of an order has ended. The next job of the order enters `queue`. */
void queues_next_in_order(Order *order, Queue *queue);

/* For a full queue: returns the newest job of the user with the most jobs. NULL: no user has more jobs than the user of
 * `place`. */
Job *queues_rival(const JobClass *class, void *data, QueueName name, const QueuePlace *place);

/* The number of queued jobs, including jobs to retry. */
size_t queues_length(QueueName name);
/* The queue for a job of this class with a waiting client. */
QueueName queues_of_client(const JobClass *class);
size_t queues_functions(void); /* including jobs that wait in an order */
size_t queues_bulk(void);      /* the number of jobs of clients that do bulk work */
/* Counts the users that have, or had in the last LINGER_MS, jobs of own functions, and the users of jobs of models in
 * the same way. Returns the larger of both numbers. */
size_t queues_users(void);
size_t queues_ahead(void); /* the total cost of clients' jobs in the worker */

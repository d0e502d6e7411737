/* Cancelled jobs that the worker may still work on. */
#ifndef QA_CANCELLED_H
#define QA_CANCELLED_H

#include "jobs/job_state.h"

/* `kill` kills the worker, which did not stop working on a cancelled job. */
void cancelled_on_load(void);
void cancelled_attach(void (*kill)(const char *reason, int innocent));

/* Asks the worker to stop working on a running job that is about to end. The worker has the grace time to take the
 * notice and then `left_ms` to stop. */
void cancelled_add(Job *job, long long left_ms);

/* The worker has stopped working on the job; 0: no such job was cancelled. */
int cancelled_remove(uint64_t id);
/* The worker has died. */
void cancelled_clear(void);

/* The worker has called QA.NEXT. */
void cancelled_asked(void);

#endif

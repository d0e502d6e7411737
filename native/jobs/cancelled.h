/* Cancelled jobs: jobs that have ended for their client while the worker was running them (deadline, client gone). The
 * worker may still work on such a job. */
#pragma once

#include "jobs/job_state.h"

void cancelled_on_load(void);
/* Stores `kill`, a function that kills the worker. cancelled.c calls `kill` with `innocent` 1 (jobs_worker_lost) if the
 * worker does not stop a cancelled job in time. */
void cancelled_attach(void (*kill)(const char *reason, int innocent));

/* Asks the worker, with a notice, to stop working on a running job. Call it before the job ends. After the grace time
 * (qa.cancel-grace-ms), the module kills the worker if the worker has not fetched the notice. A worker that has fetched
 * the notice gets `left_ms` milliseconds more to stop. If the worker has not stopped then, the module also kills the
 * worker. */
void cancelled_add(Job *job, long long left_ms);

/* Call it when the worker has stopped working on the job with this id. Returns 1, or 0 if the list of cancelled jobs
 * does not have the job. */
int cancelled_remove(uint64_t id);
/* Removes all jobs from the list of cancelled jobs. Call it when the worker has died. */
void cancelled_clear(void);

/* Counts the calls of QA.NEXT. Call it when the worker has called QA.NEXT. */
void cancelled_asked(void);

/* Cancelled jobs that the worker may still work on. */
#pragma once

#include "jobs/job_state.h"

/* `kill` kills the worker. This part calls it if the worker does not stop a cancelled job in time. */
void cancelled_on_load(void);
void cancelled_attach(void (*kill)(const char *reason, int innocent));

/* Asks the worker to stop working on a running job that is about to end. The worker gets the grace time to fetch the
 * notice, and then `left_ms` milliseconds to stop. */
void cancelled_add(Job *job, long long left_ms);

/* Call it when the worker has stopped working on the job with this id. 0: this job was not cancelled. */
int cancelled_remove(uint64_t id);
/* Call it when the worker has died. */
void cancelled_clear(void);

/* Call it when the worker has called QA.NEXT. */
void cancelled_asked(void);

/* StreamReader registrations. The worker gets a notice when a stream that matches one of them grows, and when this
 * server becomes a primary. QA.STREAM reports the outcome of a batch. */
#ifndef QA_STREAM_H
#define QA_STREAM_H

#include "functions/registry.h"

int stream_on_load(RedisModuleCtx *ctx);

/* The name of the status, as RG.DUMPREGISTRATIONS shows it. */
const char *stream_status(const Registration *registration);

/* How many batches of streams have run. */
unsigned long long stream_batches(void);

#endif

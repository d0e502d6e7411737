/* StreamReader registrations. The worker gets a notice when a stream of such a registration grows, and when this server
 * becomes a primary. With QA.STREAM, the worker reports the status of a registration, and the outcome of a batch. */
#pragma once

#include "functions/registry.h"

int stream_on_load(RedisModuleCtx *ctx);

/* Returns the name of the status for RG.DUMPREGISTRATIONS. */
const char *stream_status(const Registration *registration);

/* Returns the number of batches that have run since the module was loaded. */
unsigned long long stream_batches(void);

/* The commands that the worker sends over its links (docs/worker-protocol.md, sections 2 and 3). With these commands,
 * the worker registers with the module, fetches jobs, returns results, and sends messages to other workers. Main thread
 * only. */
#ifndef QA_QA_COMMANDS_H
#define QA_QA_COMMANDS_H

#include "server/module_api.h"

/* Registers the commands, and attaches the worker to the job queues. */
int qa_commands_on_load(RedisModuleCtx *ctx);

#endif

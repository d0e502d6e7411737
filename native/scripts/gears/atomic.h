/* QA.ATOMIC: during a short lease, the server serves only the worker, over the control socket.
 *
 * This is the only place where the server's main thread waits for the worker. It blocks in poll() until the end of the
 * lease at the latest. `qa.atomic-lease-ms` limits the lease. The supervisor owns the control socket; this part reads
 * and writes it. */
#ifndef QA_ATOMIC_H
#define QA_ATOMIC_H

#include "server/module_api.h"

int atomic_on_load(RedisModuleCtx *ctx);

#endif

/* The documents that the worker is indexing now, and which of them were in hand when workers ended.
 *
 * Before it works on documents, the worker names them with QA.INDEXING. If it ends before it has withdrawn the names,
 * each named document may be the cause. The module then counts the end in the hash `failures:{tag}` of the document's
 * partition: name -> number of ends and the last reason. The hash is replicated and migrates with its slot. The next
 * worker indexes the counted documents one at a time, and gives up a document that has ended two workers
 * (gears/functions/indexing/failures.py). */
#ifndef QA_INDEXING_H
#define QA_INDEXING_H

#include "server/module_api.h"

int indexing_on_load(RedisModuleCtx *ctx);

/* The worker has ended for `reason`; the context may write keys. `innocent`: the module has ended it for a cause that
 * is no document. */
void indexing_worker_lost(RedisModuleCtx *ctx, const char *reason, int innocent);

#endif

/* Records which documents the worker is indexing, and for each document, how many workers have ended while they indexed
 * the document.
 *
 * Before the worker indexes documents, it sends their names with QA.INDEXING. If it ends before it has withdrawn the
 * names, the module counts the end in the hash `failures:{tag}` of the document's partition: name -> number of ends and
 * the last reason. The next worker indexes the counted documents one at a time, and marks a document that has ended two
 * workers as failed (gears/functions/indexing/failures.py). */
#pragma once

#include "server/module_api.h"

int indexing_on_load(RedisModuleCtx *ctx);

/* Call it when the worker has ended for `reason`, in a context that may write keys. `innocent` 1: the module ended the
 * worker for a reason that no document caused. */
void indexing_worker_lost(RedisModuleCtx *ctx, const char *reason, int innocent);

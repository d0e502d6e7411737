/* The commands for vectors of documents. */
#ifndef QA_CMD_INDEX_VECTORS_H
#define QA_CMD_INDEX_VECTORS_H

#include "server/module_api.h"

int index_vectors_on_load(RedisModuleCtx *ctx);

#endif

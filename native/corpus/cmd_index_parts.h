/* QA.INDEX.BEGIN, QA.INDEX.ADD, QA.INDEX.COMMIT, QA.INDEX.ABORT */
#ifndef QA_CMD_INDEX_PARTS_H
#define QA_CMD_INDEX_PARTS_H

#include "server/module_api.h"

int index_parts_on_load(RedisModuleCtx *ctx);

#endif

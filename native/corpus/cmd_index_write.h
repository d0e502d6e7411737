/* QA.INDEX.PUT, QA.INDEX.DEL, QA.INDEX.CHANGE, QA.INDEX.LOAD */
#ifndef QA_CMD_INDEX_WRITE_H
#define QA_CMD_INDEX_WRITE_H

#include "server/module_api.h"

int index_write_on_load(RedisModuleCtx *ctx);

#endif

/* The commands QA.INDEX.WATCH and QA.INDEX.WATCHED. */
#ifndef QA_CMD_INDEX_WATCH_H
#define QA_CMD_INDEX_WATCH_H

#include "server/module_api.h"

/* QA.INDEX.WATCH, QA.INDEX.WATCHED. */
int index_watch_on_load(RedisModuleCtx *ctx);

#endif

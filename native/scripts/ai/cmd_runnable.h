/* AI.INFO, AI._MODELSCAN, AI._SCRIPTSCAN. */
#ifndef QA_CMD_RUNNABLE_H
#define QA_CMD_RUNNABLE_H

#include "server/module_api.h"

int runnable_on_load(RedisModuleCtx *ctx);

#endif

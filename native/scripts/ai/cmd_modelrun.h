/* AI.MODELEXECUTE, AI.MODELRUN. */
#ifndef QA_CMD_MODELRUN_H
#define QA_CMD_MODELRUN_H

#include "server/module_api.h"

int model_run_on_load(RedisModuleCtx *ctx);

#endif

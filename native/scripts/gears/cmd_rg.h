/* The RG.* commands that run scripts, ask about executions and describe the cluster. */
#ifndef QA_CMD_RG_H
#define QA_CMD_RG_H

#include "server/module_api.h"

int rg_on_load(RedisModuleCtx *ctx);

#endif

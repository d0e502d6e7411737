/* The data type AI_TENSOR, and the commands AI.TENSORSET and AI.TENSORGET. */
#ifndef QA_CMD_TENSOR_H
#define QA_CMD_TENSOR_H

#include "server/module_api.h"

int tensor_on_load(RedisModuleCtx *ctx);

#endif

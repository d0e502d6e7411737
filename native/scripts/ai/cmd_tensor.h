/* The AI_TENSOR type, AI.TENSORSET, AI.TENSORGET. */
#ifndef QA_CMD_TENSOR_H
#define QA_CMD_TENSOR_H

#include "server/module_api.h"

int tensor_on_load(RedisModuleCtx *ctx);

#endif

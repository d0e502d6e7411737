/* The data type AI__MODEL, and the commands that store, show and remove models. */
#ifndef QA_CMD_MODEL_H
#define QA_CMD_MODEL_H

#include "server/module_api.h"

int model_on_load(RedisModuleCtx *ctx);

#endif

/* AI.CONFIG. */
#ifndef QA_CMD_AI_CONFIG_H
#define QA_CMD_AI_CONFIG_H

#include "server/module_api.h"

int ai_config_on_load(RedisModuleCtx *ctx);

#endif

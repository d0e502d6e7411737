/* The data type AI_SCRIPT, and the commands that store, show and remove scripts. */
#ifndef QA_CMD_SCRIPT_H
#define QA_CMD_SCRIPT_H

#include "server/module_api.h"

int script_on_load(RedisModuleCtx *ctx);

#endif

/* AI.SCRIPTEXECUTE, AI.SCRIPTRUN. */
#ifndef QA_CMD_SCRIPTRUN_H
#define QA_CMD_SCRIPTRUN_H

#include "server/module_api.h"

int script_run_on_load(RedisModuleCtx *ctx);

#endif

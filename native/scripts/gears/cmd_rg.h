/* The RG.* commands: the whole table of them, and the handlers of all but the registrations. */
#ifndef QA_CMD_RG_H
#define QA_CMD_RG_H

#include "server/module_api.h"

int rg_on_load(RedisModuleCtx *ctx);

#endif

/* RG.TRIGGER and RG.TRIGGERONKEY: a client calls a CommandReader registration by the name of its trigger. */
#ifndef QA_CMD_TRIGGER_H
#define QA_CMD_TRIGGER_H

#include "server/module_api.h"

int trigger_on_load(RedisModuleCtx *ctx);

#endif

/* RG.TRIGGER and RG.TRIGGERONKEY: a client calls a CommandReader registration by name. */
#ifndef QA_CMD_TRIGGER_H
#define QA_CMD_TRIGGER_H

#include "server/module_api.h"

int RG_TRIGGER_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);
int RG_TRIGGERONKEY_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

#endif

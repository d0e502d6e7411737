/* RG.TRIGGER and RG.TRIGGERONKEY: a client calls a CommandReader registration by name. */
#ifndef QA_CMD_TRIGGER_H
#define QA_CMD_TRIGGER_H

#include "server/module_api.h"

int trigger_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);
int trigger_on_key_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

#endif

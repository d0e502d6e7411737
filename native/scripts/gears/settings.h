/* The load arguments and settings of RedisGears and RedisAI, RG.CONFIGGET and RG.CONFIGSET. */
#pragma once

#include "server/module_api.h"

int settings_on_load(RedisModuleCtx *ctx);

/* Applies and stores the load arguments of the module: pairs of a name and a value. Call it after config_on_load. */
int settings_load_arguments(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

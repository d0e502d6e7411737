/* The data type AI__MODEL, and the commands that store, show and remove models. */
#pragma once

#include "server/module_api.h"

int model_on_load(RedisModuleCtx *ctx);

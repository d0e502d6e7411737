/* The commands for watched questions (index.h): QA.INDEX.WATCH and QA.INDEX.WATCHED. */
#pragma once

#include "server/module_api.h"

int index_watch_on_load(RedisModuleCtx *ctx);

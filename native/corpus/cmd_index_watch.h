/* The commands QA.INDEX.WATCH and QA.INDEX.WATCHED. */
#pragma once

#include "server/module_api.h"

/* QA.INDEX.WATCH, QA.INDEX.WATCHED. */
int index_watch_on_load(RedisModuleCtx *ctx);

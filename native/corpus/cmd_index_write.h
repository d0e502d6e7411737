/* The commands that write to an index: QA.INDEX.PUT, QA.INDEX.DEL, QA.INDEX.CHANGE and QA.INDEX.LOAD. */
#pragma once

#include "server/module_api.h"

int index_write_on_load(RedisModuleCtx *ctx);

/* The commands that read an index: QA.INDEX.RANK, QA.INDEX.STATS, QA.INDEX.COMPLETE, QA.INDEX.LIST, QA.INDEX.GET,
 * QA.INDEX.FIELDS, QA.INDEX.VALUES and QA.INDEX.INFO. */
#pragma once

#include "server/module_api.h"

int index_read_on_load(RedisModuleCtx *ctx);

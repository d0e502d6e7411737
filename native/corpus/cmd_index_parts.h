/* The commands that write a document in parts: QA.INDEX.BEGIN, QA.INDEX.ADD, QA.INDEX.COMMIT and QA.INDEX.ABORT. */
#pragma once

#include "server/module_api.h"

int index_parts_on_load(RedisModuleCtx *ctx);

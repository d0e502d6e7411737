/* The commands for vectors of documents: QA.INDEX.EMBED and QA.INDEX.UNEMBEDDED. */
#pragma once

#include "server/module_api.h"

int index_vectors_on_load(RedisModuleCtx *ctx);

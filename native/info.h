/* The module's sections of INFO, which other programs read for statistics of a shard. */
#ifndef QA_INFO_H
#define QA_INFO_H

#include "server/module_api.h"

int info_on_load(RedisModuleCtx *ctx);

#endif

/* The module's sections of INFO. Every number about a shard that any program shows comes from here. */
#ifndef QA_INFO_H
#define QA_INFO_H

#include "server/module_api.h"

int info_on_load(RedisModuleCtx *ctx);

#endif

/* The module's sections of INFO. All numbers about a shard in other programs come from here. */
#ifndef QA_INFO_H
#define QA_INFO_H

#include "server/module_api.h"

int info_on_load(RedisModuleCtx *ctx);

#endif

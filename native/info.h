/* The module's sections of INFO. Other programs read their numbers about a shard from these sections. */
#ifndef QA_INFO_H
#define QA_INFO_H

#include "server/module_api.h"

int info_on_load(RedisModuleCtx *ctx);

#endif

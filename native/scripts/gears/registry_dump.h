/* RG.DUMPREGISTRATIONS: shows registrations and their counters. */
#ifndef QA_REGISTRY_DUMP_H
#define QA_REGISTRY_DUMP_H

#include "server/module_api.h"

int registry_dump_on_load(RedisModuleCtx *ctx);

#endif

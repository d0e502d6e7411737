/* AI.DAGEXECUTE, AI.DAGEXECUTE_RO, AI.DAGRUN, AI.DAGRUN_RO. */
#ifndef QA_CMD_DAG_H
#define QA_CMD_DAG_H

#include "server/module_api.h"

int dag_on_load(RedisModuleCtx *ctx);

#endif

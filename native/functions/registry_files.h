/* Saves the sessions in the RDB file and in the AOF, and loads them.
 *
 * The RDB file has the sessions as auxiliary data. The commands that change sessions are replicated, so that the AOF
 * and the replicas have the sessions too. */
#ifndef QA_REGISTRY_FILES_H
#define QA_REGISTRY_FILES_H

#include "server/module_api.h"

int registry_files_on_load(RedisModuleCtx *ctx);

#endif

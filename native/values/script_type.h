/* The AI_SCRIPT data type: scripts behind keys. */
#ifndef QA_SCRIPT_TYPE_H
#define QA_SCRIPT_TYPE_H

#include "values/script.h"

/* The script at the key, borrowed until the current command ends. Returns NULL or an error line. */
const char *script_read(RedisModuleCtx *ctx, RedisModuleString *key, Script **script);
/* Stores the script: the key takes over the caller's reference. */
void script_store(RedisModuleCtx *ctx, RedisModuleString *key, Script *script);
/* Replicates the script as AI.SCRIPTSTORE. */
void script_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Script *script);
RedisModuleType *script_key_type(void);
int script_type_create(RedisModuleCtx *ctx);

#endif

/* The AI__MODEL data type: models behind keys. */
#ifndef QA_MODEL_TYPE_H
#define QA_MODEL_TYPE_H

#include "values/model.h"

#define MODEL_ENCVER 5 /* of a model in an RDB file */

/* The model at the key, borrowed until the current command ends. Returns NULL or an error line. */
const char *model_read(RedisModuleCtx *ctx, RedisModuleString *key, Model **model);
/* Stores the model: the key takes over the caller's reference. */
void model_store(RedisModuleCtx *ctx, RedisModuleString *key, Model *model);
/* Replicates the model as AI.MODELSTORE, with its names, so that a replica needs no worker to know them. */
void model_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Model *model);
RedisModuleType *model_key_type(void);
int model_type_create(RedisModuleCtx *ctx);

#endif

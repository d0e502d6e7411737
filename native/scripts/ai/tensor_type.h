/* The data type AI_TENSOR: tensors behind keys. */
#pragma once

#include "scripts/ai/tensor.h"

/* Sets *tensor to the tensor of the key. It is valid until the current command ends. Returns NULL or an error line. */
const char *tensor_read_key(RedisModuleCtx *ctx, RedisModuleString *key, Tensor **tensor);
/* Stores the tensor in the key, which takes over the caller's reference. */
void tensor_store(RedisModuleCtx *ctx, RedisModuleString *key, Tensor *tensor);
/* Replicates the tensor as AI.TENSORSET. */
void tensor_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Tensor *tensor);
RedisModuleType *tensor_key_type(void);
int tensor_type_create(RedisModuleCtx *ctx);

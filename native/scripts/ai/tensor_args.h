/* The arguments of AI.TENSORSET and AI.TENSORGET, as commands or as operations of a DAG. */
#pragma once

#include "scripts/ai/tensor.h"

typedef struct TensorFormat {
    int meta, blob, values;
} TensorFormat;

/* argv: the arguments after the key of AI.TENSORSET, at least the type. The size limit does not apply to a command of a
 * primary or the AOF. Returns NULL or an error line. */
const char *tensor_parse(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, Tensor **tensor);

/* argv: the arguments after the key of AI.TENSORGET. Returns NULL or an error line. */
const char *tensor_format_parse(RedisModuleString **argv, int argc, TensorFormat *format);
void tensor_reply(RedisModuleCtx *ctx, const Tensor *tensor, const TensorFormat *format);

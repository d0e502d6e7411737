/* QA.AS: runs the command of a function with the rights of the user that called the function. */
#pragma once

#include "server/module_api.h"

int calling_on_load(RedisModuleCtx *ctx);

/* Runs QA.AS inside an atomic block. Returns NULL if the command did not run. Then `error` is an error line, which is
 * valid until the next call. */
RedisModuleCallReply *calling_in_block(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, const char **error);

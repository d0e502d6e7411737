/* QA.AS: runs the command of a function with the rights of the user that called the function. */
#pragma once

#include "server/module_api.h"

int calling_on_load(RedisModuleCtx *ctx);

/* Runs a QA.AS that the worker has sent inside an atomic block (the commands of a function under `atomic()`,
 * scripts/gears/atomic.c). Returns the reply of the command. NULL: the command did not run, and *error is an error
 * line, which is valid until the next call. */
RedisModuleCallReply *calling_in_block(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, const char **error);

/* QA.AS: runs the command of a function with the rights of the user that called the function. */
#ifndef QA_CALLING_H
#define QA_CALLING_H

#include "server/module_api.h"

int calling_on_load(RedisModuleCtx *ctx);

/* The same inside an atomic block. NULL: the command did not run, and `error` says why, until the next call. */
RedisModuleCallReply *calling_in_block(RedisModuleCtx *ctx, RedisModuleString **argv, int argc, const char **error);

#endif

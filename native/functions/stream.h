/* StreamReader registrations: tells the worker of additions to the streams they match, and of becoming a primary. */
#ifndef QA_STREAM_H
#define QA_STREAM_H

#include "server/module_api.h"

int stream_on_load(RedisModuleCtx *ctx);

#endif

/* StreamReader registrations: the worker gets a notice when a stream that they match grows, and when this server
 * becomes a primary. */
#ifndef QA_STREAM_H
#define QA_STREAM_H

#include "server/module_api.h"

int stream_on_load(RedisModuleCtx *ctx);

#endif

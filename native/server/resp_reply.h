/* Sends a RESP value from a buffer to a client, in that client's protocol version. */
#pragma once

#include "server/module_api.h"
#include "server/resp.h"

/* Replies with the value in the buffer. resp_valid() must have accepted the buffer with the same flags. */
void resp_reply(RedisModuleCtx *ctx, const char *buffer, size_t length, unsigned flags);

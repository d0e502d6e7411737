/* The vector of a question, and the digest of an encoder, as arguments of the commands on an index. */
#ifndef QA_VECTOR_ARGUMENT_H
#define QA_VECTOR_ARGUMENT_H

#include "index/index.h"
#include "server/args.h"

/* Reads INDEX_DIGEST bytes that name an encoder. Returns NULL or an error line. */
const char *digest_argument(RedisModuleString *argument, const uint8_t **digest);

#endif

/* The vector of a question, and the digest of an encoder, as arguments of the commands on an index. An encoder is the
 * model that makes the vectors. */
#pragma once

#include "index/index.h"
#include "server/args.h"

/* Reads INDEX_DIGEST bytes that name an encoder. Returns NULL or an error line. */
const char *digest_argument(RedisModuleString *argument, const uint8_t **digest);

/* Reads [VECTOR digest weight missing vector]. Sets *given to true, or to false if these arguments are missing. Returns
 * NULL or an error line. `error` is the buffer for an error line that contains a value. */
enum { MAX_VECTOR_ERROR = 160 };
const char *vector_argument(Cursor *cursor, IndexVector *vector, bool *given, char error[MAX_VECTOR_ERROR]);

/* Checks that the vector has the same number of dimensions as the index's vectors of the same encoder, if there are
 * any. Returns NULL or an error line. */
const char *vector_check(const Index *index, const IndexVector *vector, char error[MAX_VECTOR_ERROR]);

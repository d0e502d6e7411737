/* Vectors are binary strings (docs/inverted-index.md). */
#include "corpus/vector_argument.h"

const char *digest_argument(RedisModuleString *argument, const uint8_t **digest) {
    size_t length;
    *digest = (const uint8_t *)RedisModule_StringPtrLen(argument, &length);
    return length == INDEX_DIGEST ? NULL : "ERR the digest of an encoder must have 8 bytes";
}

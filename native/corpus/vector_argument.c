/* A vector is a binary string: a scale as a float of 4 bytes, then one signed byte for each dimension
 * (docs/inverted-index.md). */
#include "corpus/vector_argument.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_WEIGHT 1e6

const char *digest_argument(RedisModuleString *argument, const uint8_t **digest) {
    size_t length;
    *digest = (const uint8_t *)RedisModule_StringPtrLen(argument, &length);
    return length == INDEX_DIGEST ? NULL : "ERR the digest of an encoder must have 8 bytes";
}

static bool parse_number(RedisModuleString *argument, double least, double most, double *number) {
    return RedisModule_StringToDouble(argument, number) == REDISMODULE_OK && *number >= least && *number <= most;
}

static const char *parse_packed(RedisModuleString *argument, IndexVector *vector, char *error) {
    size_t length;
    const uint8_t *bytes = (const uint8_t *)RedisModule_StringPtrLen(argument, &length);
    if (length <= 4 || length > 4 + INDEX_MAX_DIMENSIONS) {
        snprintf(error, MAX_VECTOR_ERROR, "ERR the vector has %zu bytes, it must have 5 to %d", length,
                 4 + INDEX_MAX_DIMENSIONS);
        return error;
    }
    uint32_t scale = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    memcpy(&vector->scale, &scale, sizeof scale);
    vector->values = (const int8_t *)bytes + 4;
    vector->dims = (uint32_t)length - 4;
    if (isfinite(vector->scale) && vector->scale >= 0) return NULL;
    snprintf(error, MAX_VECTOR_ERROR, "ERR the vector has the scale %g, it must be a finite number from 0",
             (double)vector->scale);
    return error;
}

const char *vector_argument(Cursor *cursor, IndexVector *vector, bool *given, char error[MAX_VECTOR_ERROR]) {
    *given = cursor_accept(cursor, "VECTOR");
    if (!*given) return NULL;
    RedisModuleString **argv = cursor->argv + cursor->at;
    if (cursor->argc - cursor->at < 4)
        return "ERR VECTOR must be followed by a digest, a weight, a cosine and a vector";
    cursor->at += 4;
    *vector = (IndexVector){.scan_bytes = INDEX_MAX_SCAN};
    const char *wrong = digest_argument(argv[0], &vector->digest);
    if (wrong) return wrong;
    if (!parse_number(argv[1], 0, MAX_WEIGHT, &vector->weight)) return "ERR weight must be a number from 0 to 1000000";
    if (!parse_number(argv[2], -1, 1, &vector->missing))
        return "ERR the cosine of missing vectors must be a number from -1 to 1";
    return parse_packed(argv[3], vector, error);
}

const char *vector_check(const Index *index, const IndexVector *vector, char error[MAX_VECTOR_ERROR]) {
    IndexEncoder encoders[INDEX_MAX_ENCODERS];
    size_t count = index_encoders(index, encoders);
    for (size_t i = 0; i < count; i++) {
        if (memcmp(encoders[i].digest, vector->digest, INDEX_DIGEST) || encoders[i].dims == vector->dims) continue;
        snprintf(error, MAX_VECTOR_ERROR,
                 "ERR the vector has %u dimensions, the index has vectors of %u dimensions from this encoder",
                 vector->dims, encoders[i].dims);
        return error;
    }
    return NULL;
}

/* Dot products of vectors with values of 8 bits. */
#pragma once

#include "index/structure.h"

/* Writes the dot product of `query` with each of `count` vectors to `out`. All vectors have `bytes` bytes, a multiple
 * of VECTOR_STEP and at most INDEX_MAX_DIMENSIONS. The products are exact. */
typedef void (*DotFunction)(const int8_t *query, const int8_t *vectors, size_t count, size_t bytes, int32_t *out);

/* Returns the fastest function that this processor supports. */
DotFunction dot_function(void);
/* The portable function, which every processor supports. Declared here for tests. */
void dot_portable(const int8_t *query, const int8_t *vectors, size_t count, size_t bytes, int32_t *out);

/* The vectors of documents. Each call that adds passages makes a part: these passages with their vectors (vectors.c).
 */
#pragma once

#include "index/structure.h"

enum { NO_ENCODER = 0xffffffff };

/* The bytes of a stored vector: the dimensions, rounded up to a multiple of VECTOR_STEP. */
static inline size_t vector_bytes(uint32_t dims) { return (dims + VECTOR_STEP - 1) / VECTOR_STEP * VECTOR_STEP; }

/* The vectors of one part. */
static inline const int8_t *part_values(const Vectors *part) { return (const int8_t *)(part->passages + part->count); }

/* Returns the index in `encoders` of the encoder with this digest. NO_ENCODER: no document has vectors of this
 * encoder. */
uint32_t encoder_find(const Index *index, const uint8_t digest[INDEX_DIGEST]);
/* Like encoder_find(), but adds a missing encoder. NO_ENCODER: the encoder is missing, and INDEX_MAX_ENCODERS other
 * encoders have vectors in the index. */
uint32_t encoder_add(Index *index, const uint8_t digest[INDEX_DIGEST], uint32_t dims);

/* True: rankings use the vectors of this document for questions of this encoder. */
static inline bool vectors_complete(const Document *document, uint32_t encoder) {
    const Vectors *vectors = document->vectors;
    return vectors && vectors->encoder == encoder && vectors->stored == vectors->total;
}

/* The number of the first sentence after all stored passages (from 0). 0: no passage is stored. */
uint32_t vectors_end(const Document *document);

/* The bytes of a packed passage. */
static inline size_t packed_passage_bytes(uint32_t dims) { return 3 * sizeof(uint32_t) + dims; }

/* Checks packed passages (vectors.c). They must ascend and not overlap, and contain only sentences of [start,
 * sentences). False: `problem` says what is wrong. */
bool passages_check(const uint8_t *bytes, size_t length, uint32_t dims, uint64_t start, uint64_t sentences,
                    char problem[INDEX_PROBLEM]);
/* Appends `count` passages that passages_check() has accepted. If the document has no vectors yet, also stores
 * `encoder` and `total` in its Vectors. */
void vectors_append(Index *index, Document *document, uint32_t encoder, uint32_t total, const uint8_t *bytes,
                    uint32_t count);
void vectors_free(Index *index, Document *document);
void vectors_free_encoders(Index *index);
/* Records a change of a document's complete vectors. Uses one more id, so a ranking before the change has a lower
 * index_next_id() than a ranking after the change. Call it after the change. */
void vectors_changed(Index *index, const Document *document);

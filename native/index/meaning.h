/* The cosines between a question's vector and all passages. index.h defines passage and encoder. A contribution is the
 * part of a sentence's score that comes from the cosine of its passage. Ids are sentence ids. */
#pragma once

#include "index/structure.h"

#include <math.h>

#include "index/dot.h"

/* A range of ids with one cosine (not a span of a text). The range contains sentences of one passage, or ids without a
 * passage. It ends before the id of the next span in the array. A passage has several spans if its sentences are in
 * several runs. */
typedef struct Span {
    uint64_t id : 48;    /* the first id of the range */
    uint64_t starts : 1; /* the first sentence of the passage is in this span */
    double cosine;       /* NAN: no passage */
} Span;

#define NO_SPAN UINT32_MAX

/* A span that continues the passage of an earlier span. Both numbers are positions in `spans`. */
typedef struct Continued {
    size_t span, start; /* the span, and the first span of the passage */
} Continued;

typedef struct Meaning {
    Index *index;
    const IndexVector *vector;
    uint32_t encoder; /* NO_ENCODER: no document has vectors of this encoder that can be compared */
    size_t bytes;     /* the bytes of a stored vector, with padding */
    int8_t *query;    /* the question's vector, with the same padding as stored vectors */
    DotFunction dot;
    Span *spans; /* ascending by id */
    size_t count, capacity;
    Continued *continued; /* ascending by span */
    size_t continued_count, continued_capacity;
    size_t at;   /* the span that the last meaning_find() returned */
    double most; /* the maximum contribution of all spans, and of a missing vector */
} Meaning;

void meaning_open(Meaning *meaning, Index *index, const IndexVector *vector);
void meaning_close(Meaning *meaning);
/* Allocates space for about this number of passages. Call it before the first scan. */
void meaning_reserve(Meaning *meaning, size_t passages);

/* Computes the cosines of the passages in a range of ids, from `first` to before `end`, and appends their spans. The
 * ranges of successive calls must ascend. If `admits` returns false for a document, the sentences of the document are
 * treated as sentences without vectors. */
typedef bool (*MeaningAdmits)(void *context, uint32_t document);
void meaning_scan(Meaning *meaning, uint64_t first, uint64_t end, MeaningAdmits admits, void *context);

/* The contribution of a cosine to the score. */
static inline double meaning_weigh(const IndexVector *vector, double cosine) {
    return vector->weight * (isnan(cosine) ? vector->missing : cosine);
}

/* Returns the span that contains the id. The ids of successive calls must ascend. */
static inline size_t meaning_find(Meaning *meaning, uint64_t id) {
    size_t at = meaning->at;
    while (at + 1 < meaning->count && meaning->spans[at + 1].id <= id) at++;
    return meaning->at = at;
}

/* Returns the first span of this span's passage. */
size_t meaning_start(const Meaning *meaning, size_t span);
/* Returns the maximum contribution in a range of ids, from `first` to before `end`. `first` must not be below the
 * `first` or the id of an earlier call of meaning_most() or meaning_find(). */
double meaning_most(Meaning *meaning, uint64_t first, uint64_t end);

/* Finds the passage of a sentence, and sets *first and *count to the passage's first sentence and number of sentences.
 * Returns the passage's cosine. NAN: the document has no complete vectors of this encoder, or the sentence is in no
 * passage. In both cases, the sentence is returned as a passage of one sentence. */
double meaning_of_sentence(const Meaning *meaning, const Document *document, uint32_t sentence, uint32_t *first,
                           uint32_t *count);

/* Returns the highest cosine of a document's passages. The document's vectors must be complete. NAN: the document has
 * no passages. */
double meaning_of_document(const Meaning *meaning, const Document *document);

/* Returns the number of bytes of vectors that a scan of these documents reads. `documents` NULL: all documents. */
uint64_t meaning_bytes(const Meaning *meaning, const uint32_t *documents, size_t count);

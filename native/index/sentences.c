/* Reads the sentences of a document in the binary form of commands. Checks all sentences before it adds any.
 *
 *     sentences: one after the other, to the end of the bytes
 *     sentence:  number of terms, with repetitions; number of distinct terms; these terms, in the order of their bytes
 *     term:      frequency, length, bytes
 *
 * Numbers are varints of at most three bytes. Each byte has seven bits of the number, the lowest bits first. The top
 * bit is set in all bytes except the last byte. Terms ascend, so a comparison with the previous term finds a duplicate.
 * A document has fewer than 2^32 sentences, each with fewer than 2^16 terms. So the sum of the lengths cannot exceed
 * the limit of load.c. */
#include "index/sentences.h"

#include "index/documents.h"
#include "index/memory.h"

static bool fail(IndexPacked *packed, const char *problem, size_t offset) {
    packed->problem = problem;
    packed->offset = offset;
    return false;
}

const uint8_t *packed_number(const uint8_t *at, const uint8_t *end, uint32_t *number) {
    *number = 0;
    for (unsigned shift = 0; shift < 21 && at < end; shift += 7) {
        *number |= (uint32_t)(*at & 0x7f) << shift;
        if (!(*at++ & 0x80)) return at;
    }
    return NULL;
}

typedef struct Term {
    const uint8_t *bytes;
    uint32_t length, frequency;
} Term;

static bool is_after(const Term *term, const Term *previous) {
    uint32_t shorter = term->length < previous->length ? term->length : previous->length;
    int order = memcmp(term->bytes, previous->bytes, shorter);
    return order > 0 || (order == 0 && term->length > previous->length);
}

/* NULL: the term is invalid, and `packed` says why. */
static const uint8_t *check_term(const uint8_t *start, const uint8_t *at, const uint8_t *end, Term *term,
                                 IndexPacked *packed) {
    const uint8_t *here = at;
    Term previous = *term;
    if (!(at = packed_number(at, end, &term->frequency)) || !term->frequency || term->frequency > INDEX_MAX_LENGTH) {
        fail(packed, "a frequency must be between 1 and 65535", (size_t)(here - start));
        return NULL;
    }
    here = at;
    if (!(at = packed_number(at, end, &term->length)) || !term->length || term->length > INDEX_MAX_TERM) {
        fail(packed, "a term must have 1 to 256 bytes", (size_t)(here - start));
        return NULL;
    }
    term->bytes = at;
    if ((size_t)(end - at) < term->length) {
        fail(packed, "a term extends beyond the end", (size_t)(at - start));
        return NULL;
    }
    if (previous.bytes && !is_after(term, &previous)) {
        fail(packed, "the terms of a sentence must ascend", (size_t)(at - start));
        return NULL;
    }
    return at + term->length;
}

bool index_packed_check(const void *bytes, size_t length, IndexPacked *packed) {
    const uint8_t *start = bytes, *at = start, *end = start + length;
    *packed = (IndexPacked){0};
    for (; at < end; packed->sentences++) {
        const uint8_t *here = at;
        uint32_t terms, count;
        if (!(at = packed_number(at, end, &terms)) || terms > INDEX_MAX_LENGTH)
            return fail(packed, "a sentence must have 0 to 65535 terms", (size_t)(here - start));
        here = at;
        if (!(at = packed_number(at, end, &count)) || count > INDEX_MAX_LENGTH)
            return fail(packed, "a sentence must have 0 to 65535 distinct terms", (size_t)(here - start));
        if (count > packed->most_terms) packed->most_terms = count;
        Term term = {0};
        for (; count; count--)
            if (!(at = check_term(start, at, end, &term, packed))) return false;
    }
    return true;
}

enum { BATCH_SENTENCES = 256, BATCH_POSTINGS = 2048 };

typedef struct Batch {
    IndexSentence sentences[BATCH_SENTENCES];
    size_t count, used; /* the numbers of sentences and postings */
    IndexPosting postings[];
} Batch;

static IndexStatus add_batch(IndexPending *pending, Batch *batch) {
    IndexStatus status = index_add(pending, batch->sentences, batch->count);
    batch->count = batch->used = 0;
    return status;
}

/* Adds many sentences in each call of index_add(), which makes the forward list shorter. */
IndexStatus index_add_packed(IndexPending *pending, const void *bytes, size_t length, const IndexPacked *packed) {
    Index *index = pending->index;
    size_t room = packed->most_terms > BATCH_POSTINGS ? packed->most_terms : BATCH_POSTINGS;
    size_t batch_bytes = sizeof(Batch) + room * sizeof(IndexPosting);
    Batch *batch = memory_alloc(index, batch_bytes);
    batch->count = batch->used = 0;
    const uint8_t *at = bytes, *end = at + length;
    IndexStatus status = INDEX_OK;
    while (at < end && status == INDEX_OK) {
        uint32_t terms, count;
        at = packed_number(packed_number(at, end, &terms), end, &count);
        if (batch->count == BATCH_SENTENCES || count > room - batch->used) status = add_batch(pending, batch);
        batch->sentences[batch->count++] = (IndexSentence){batch->postings + batch->used, count, terms};
        for (; count; count--) {
            IndexPosting *posting = &batch->postings[batch->used++];
            at = packed_number(packed_number(at, end, &posting->frequency), end, &posting->term_length);
            posting->term = at;
            at += posting->term_length;
        }
    }
    if (status == INDEX_OK) status = add_batch(pending, batch);
    memory_free(index, batch, batch_bytes);
    return status;
}

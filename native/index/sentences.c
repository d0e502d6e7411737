/* Checks the sentences of a document in the binary form of commands.
 *
 *     sentences: one after the other, to the end of the bytes
 *     sentence:  number of terms, with repetitions; number of distinct terms; these terms, in the order of their bytes
 *     term:      frequency, length, bytes
 *
 * Numbers are varints of at most three bytes. Each byte has seven bits of the number, the lowest bits first. The top
 * bit is set in all bytes except the last byte. The terms of a sentence ascend, so a comparison with the previous term
 * finds a duplicate.
 *
 * A document has fewer than 2^32 sentences, each with fewer than 2^16 terms. So a document has fewer than 2^48 terms.
 * The loader refuses a document with more than MAX_ID (2^48 - 1) terms (load.c). */
#include "index/sentences.h"

#include <string.h>

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

/* Checks the term at `at` and returns its end. On entry, *term is the previous term of the sentence; on return, *term
 * is this term. NULL: this term is invalid, and `packed` says why. */
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
        Term term = {0};
        for (; count; count--)
            if (!(at = check_term(start, at, end, &term, packed))) return false;
    }
    return true;
}

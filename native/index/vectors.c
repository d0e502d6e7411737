/* Vectors of passages, which are attached to documents.
 *
 * A passage is a range of sentences of one document. Its vector consists of a scale and 8-bit integers: each value of
 * the vector is the scale times one integer. Packed passages are the passages in the binary form of commands, one after
 * the other. All numbers are little-endian:
 *
 *     passage: u32 number of its first sentence (from 0), u32 number of sentences, f32 scale, `dims` signed bytes
 *
 * Each call that appends passages creates one part. The vectors of a part are contiguous in memory, which makes a scan
 * of all documents fast. A stored passage takes 12 bytes, plus its vector padded to a multiple of VECTOR_STEP bytes. A
 * part takes 32 bytes more. Only live documents have vectors. All vectors of a document come from one encoder. */
#include "index/vectors.h"

#include <math.h>
#include <stdio.h>

#include "index/fields.h"
#include "index/memory.h"

/* ---- Encoders ---- */

uint32_t encoder_find(const Index *index, const uint8_t digest[INDEX_DIGEST]) {
    for (uint32_t i = 0; i < index->encoder_count; i++) {
        const Encoder *encoder = &index->encoders[i];
        if (encoder->documents && !memcmp(encoder->digest, digest, INDEX_DIGEST)) return i;
    }
    return NO_ENCODER;
}

uint32_t encoder_add(Index *index, const uint8_t digest[INDEX_DIGEST], uint32_t dims) {
    uint32_t found = encoder_find(index, digest);
    if (found != NO_ENCODER) return found;
    for (found = 0; found < index->encoder_count && index->encoders[found].documents; found++) {
    }
    if (found == INDEX_MAX_ENCODERS) return NO_ENCODER;
    if (found == index->encoder_count) {
        size_t bytes = index->encoder_count * sizeof *index->encoders;
        index->encoders = memory_resize(index, index->encoders, bytes, bytes + sizeof *index->encoders);
        index->encoder_count++;
    }
    index->encoders[found] = (Encoder){.dims = dims};
    memcpy(index->encoders[found].digest, digest, INDEX_DIGEST);
    return found;
}

void vectors_free_encoders(Index *index) {
    memory_free(index, index->encoders, index->encoder_count * sizeof *index->encoders);
    memory_free(index, index->embedded, RECENT_EMBEDDED * sizeof *index->embedded);
}

void vectors_changed(Index *index, const Document *document) {
    if (!index->embedded) index->embedded = memory_zeroed(index, RECENT_EMBEDDED * sizeof *index->embedded);
    Embedded *slot = &index->embedded[index->embedded_count % RECENT_EMBEDDED];
    if (index->embedded_count++ >= RECENT_EMBEDDED) index->embedded_from = slot->id + 1;
    *slot = (Embedded){index->next_id++, document->head};
}

/* ---- Packed passages ---- */

static Passage get_passage(const uint8_t *bytes) {
    uint32_t scale = u32_at(bytes + 8);
    Passage passage = {.first = u32_at(bytes), .count = u32_at(bytes + 4)};
    memcpy(&passage.scale, &scale, sizeof scale);
    return passage;
}

bool passages_check(const uint8_t *bytes, size_t length, uint32_t dims, uint64_t start, uint64_t sentences,
                    char problem[INDEX_PROBLEM]) {
    size_t each = packed_passage_bytes(dims);
    if (length % each) {
        snprintf(problem, INDEX_PROBLEM, "the passages have %zu bytes, not a multiple of %zu: 12 and %u dimensions",
                 length, each, dims);
        return false;
    }
    for (size_t i = 0; i < length / each; i++) {
        Passage passage = get_passage(bytes + i * each);
        uint64_t end = (uint64_t)passage.first + passage.count;
        if (!passage.count) snprintf(problem, INDEX_PROBLEM, "passage %zu has 0 sentences, it must have at least 1", i);
        else if (passage.first < start)
            snprintf(problem, INDEX_PROBLEM,
                     "passage %zu starts at sentence %u, before sentence %llu, the end of the previous passage", i,
                     passage.first, (unsigned long long)start);
        else if (end > sentences)
            snprintf(problem, INDEX_PROBLEM, "passage %zu ends at sentence %llu, the document has %llu sentences", i,
                     (unsigned long long)end, (unsigned long long)sentences);
        else if (!isfinite(passage.scale) || passage.scale < 0)
            snprintf(problem, INDEX_PROBLEM, "passage %zu has the scale %g, it must be a finite number from 0", i,
                     (double)passage.scale);
        else {
            start = end;
            continue;
        }
        return false;
    }
    return true;
}

/* ---- Vectors of a document ---- */

static size_t part_bytes(const Vectors *part, size_t vector) {
    return sizeof *part + part->count * (vector + sizeof(Passage));
}

uint32_t vectors_end(const Document *document) {
    const Vectors *vectors = document->vectors;
    if (!vectors || !vectors->stored) return 0;
    const Passage *last = &vectors->last->passages[vectors->last->count - 1];
    return last->first + last->count;
}

static Vectors *new_part(Index *index, uint32_t dims, const uint8_t *bytes, uint32_t count) {
    size_t vector = vector_bytes(dims);
    Vectors *part = memory_alloc(index, sizeof *part + count * (vector + sizeof(Passage)));
    *part = (Vectors){.count = count};
    int8_t *values = (int8_t *)(part->passages + count);
    for (uint32_t i = 0; i < count; i++, bytes += packed_passage_bytes(dims), values += vector) {
        part->passages[i] = get_passage(bytes);
        memcpy(values, bytes + packed_passage_bytes(0), dims);
        memset(values + dims, 0, vector - dims);
    }
    return part;
}

void vectors_append(Index *index, Document *document, uint32_t encoder, uint32_t total, const uint8_t *bytes,
                    uint32_t count) {
    Encoder *of = &index->encoders[encoder];
    Vectors *part = new_part(index, of->dims, bytes, count), *vectors = document->vectors;
    if (vectors) {
        vectors->last->next = part;
    } else {
        vectors = document->vectors = part;
        vectors->encoder = encoder;
        vectors->total = total;
        of->documents++;
    }
    vectors->last = part;
    vectors->stored += count;
    of->passages += count;
    of->bytes += part_bytes(part, vector_bytes(of->dims));
    of->complete += vectors->stored == vectors->total;
}

void vectors_free(Index *index, Document *document) {
    Vectors *vectors = document->vectors;
    if (!vectors) return;
    Encoder *of = &index->encoders[vectors->encoder];
    of->complete -= vectors->stored == vectors->total;
    of->passages -= vectors->stored;
    of->documents--;
    for (Vectors *part = vectors, *next; part; part = next) {
        size_t bytes = part_bytes(part, vector_bytes(of->dims));
        next = part->next;
        of->bytes -= bytes;
        memory_free(index, part, bytes);
    }
    document->vectors = NULL;
}

/* Attaches vectors to documents. list.c lists the documents that lack vectors. */
#include "index/structure.h"

#include <stdio.h>

#include "index/documents.h"
#include "index/vectors.h"

/* True: the document can get these passages. Either `done` is 0, and the call replaces all vectors of the document; or
 * the document has exactly the first `done` of `total` passages of this encoder. */
static bool continues(const Index *index, const Document *document, const IndexEmbedding *embedding) {
    const Vectors *vectors = document->vectors;
    if (!embedding->done) return true;
    return vectors && vectors->stored == embedding->done && vectors->total == embedding->total &&
           !memcmp(index->encoders[vectors->encoder].digest, embedding->digest, INDEX_DIGEST);
}

static bool check_form(const IndexEmbedding *embedding, char problem[INDEX_PROBLEM]) {
    uint64_t count = embedding->length / packed_passage_bytes(embedding->dims);
    if (!embedding->dims || embedding->dims > INDEX_MAX_DIMENSIONS)
        snprintf(problem, INDEX_PROBLEM, "a vector has %u dimensions, it must have 1 to %d", embedding->dims,
                 INDEX_MAX_DIMENSIONS);
    else if (embedding->length > INDEX_MAX_EMBEDDING)
        snprintf(problem, INDEX_PROBLEM, "the passages have %zu bytes, they must have %d at most", embedding->length,
                 INDEX_MAX_EMBEDDING);
    else if (!embedding->length && embedding->total)
        snprintf(problem, INDEX_PROBLEM, "there are no passages in this part, but %u in the document",
                 embedding->total);
    else if (embedding->done + count > embedding->total)
        snprintf(problem, INDEX_PROBLEM, "there are %llu passages after %u, more than the total of %u",
                 (unsigned long long)count, embedding->done, embedding->total);
    else return true;
    return false;
}

/* True: the document may get vectors of `encoder`, an index into `encoders` of the index, or NO_ENCODER if the index
 * does not have the encoder. Either the index has the encoder already, or the index will have fewer than
 * INDEX_MAX_ENCODERS encoders after the document's present vectors are removed. */
static bool has_place(const Index *index, const Document *document, uint32_t encoder) {
    uint32_t others = 0;
    if (encoder != NO_ENCODER) return true;
    for (uint32_t i = 0; i < index->encoder_count; i++)
        others += index->encoders[i].documents > (document->vectors && document->vectors->encoder == i);
    return others < INDEX_MAX_ENCODERS;
}

IndexStatus index_embed(Index *index, const void *id, size_t id_length, const IndexEmbedding *embedding,
                        char problem[INDEX_PROBLEM]) {
    const uint32_t dims = embedding->dims;
    if (!check_form(embedding, problem) ||
        !passages_check(embedding->passages, embedding->length, dims, 0, UINT32_MAX, problem))
        return INDEX_INVALID;
    uint32_t number = document_find(index, id, id_length), encoder = encoder_find(index, embedding->digest);
    if (encoder != NO_ENCODER && index->encoders[encoder].dims != dims) {
        snprintf(problem, INDEX_PROBLEM, "a vector has %u dimensions, the other vectors of this encoder have %u", dims,
                 index->encoders[encoder].dims);
        return INDEX_INVALID;
    }
    if (number == NO_ITEM || !continues(index, document_at(index, number), embedding)) return INDEX_MISSING;
    Document *document = document_at(index, number);
    uint32_t start = embedding->done ? vectors_end(document) : 0;
    if (!passages_check(embedding->passages, embedding->length, dims, start, document->sentences, problem))
        return INDEX_INVALID;
    if (!document->sentences) {
        snprintf(problem, INDEX_PROBLEM, "the document has no sentences, so it can have no vectors");
        return INDEX_INVALID;
    }
    if (embedding->total > document->sentences) {
        snprintf(problem, INDEX_PROBLEM, "there are %u passages in all, the document has %u sentences",
                 embedding->total, document->sentences);
        return INDEX_INVALID;
    }
    if (index->next_id > MAX_ID) {
        snprintf(problem, INDEX_PROBLEM, "index is full");
        return INDEX_FULL;
    }
    if (!has_place(index, document, encoder)) {
        snprintf(problem, INDEX_PROBLEM, "the index has vectors of %d encoders, the limit", INDEX_MAX_ENCODERS);
        return INDEX_FULL;
    }
    bool changed = document->vectors && document->vectors->stored == document->vectors->total;
    if (!embedding->done) vectors_free(index, document);
    encoder = encoder_add(index, embedding->digest, dims);
    vectors_append(index, document, encoder, embedding->total, embedding->passages,
                   (uint32_t)(embedding->length / packed_passage_bytes(dims)));
    if (changed || vectors_complete(document, encoder)) vectors_changed(index, document);
    return INDEX_OK;
}

size_t index_encoders(const Index *index, IndexEncoder encoders[INDEX_MAX_ENCODERS]) {
    size_t count = 0;
    for (uint32_t i = 0; i < index->encoder_count; i++) {
        const Encoder *encoder = &index->encoders[i];
        if (!encoder->documents) continue;
        IndexEncoder *out = &encoders[count++];
        memcpy(out->digest, encoder->digest, INDEX_DIGEST);
        out->dims = encoder->dims;
        out->documents = encoder->complete;
        out->passages = encoder->passages;
        out->bytes = encoder->bytes;
    }
    return count;
}

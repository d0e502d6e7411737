/* Looks up one document, and lists all documents in the order of index_begin(). */
#include "index/structure.h"

#include "index/documents.h"
#include "index/filter.h"
#include "index/runs.h"
#include "index/vectors.h"

static IndexDocument describe(const Document *document) {
    return (IndexDocument){document->bytes,       document->id_bytes,  document_fields(document),
                           document->field_bytes, document->sentences, document->terms};
}

IndexStatus index_get(const Index *index, const void *id, size_t length, IndexDocument *out) {
    uint32_t number = document_find(index, id, length);
    if (number == NO_ITEM) return INDEX_MISSING;
    *out = describe(document_at(index, number));
    return INDEX_OK;
}

typedef struct Choice {
    const IndexFilter *filter; /* NULL: no filter */
    bool lacks_vectors;        /* true: only documents that have sentences but lack complete vectors of `encoder` */
    uint32_t encoder;
} Choice;

static bool is_chosen(const Choice *choice, const Document *document) {
    if (document->state != DOCUMENT_LIVE) return false;
    if (choice->lacks_vectors && (!document->sentences || vectors_complete(document, choice->encoder))) return false;
    return !choice->filter || filter_matches(choice->filter, document);
}

static size_t list(const Index *index, const Choice *choice, uint64_t *cursor, size_t steps, IndexDocument *out,
                   size_t count) {
    size_t found = 0;
    uint64_t id = *cursor;
    for (; found < count && steps; steps--) {
        Place place = runs_from(index, id);
        if (place.document == NO_ITEM) {
            *cursor = 0;
            return found;
        }
        const Document *document = document_at(index, place.document);
        /* A cursor is the end of a run that the listing has read. If the cursor is inside a document's first run, the
         * run has grown since, and the listing has already read the document. */
        bool is_head = place.sentence == 0 && id <= place.first;
        if (is_head && is_chosen(choice, document)) out[found++] = describe(document);
        id = place.end;
    }
    *cursor = id;
    return found;
}

size_t index_list(const Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps, IndexDocument *out,
                  size_t count) {
    return list(index, &(Choice){.filter = filter}, cursor, steps, out, count);
}

size_t index_unembedded(const Index *index, const uint8_t digest[INDEX_DIGEST], uint64_t *cursor, size_t steps,
                        IndexDocument *out, size_t count) {
    uint32_t encoder = encoder_find(index, digest);
    if (encoder != NO_ENCODER && index->encoders[encoder].complete == index->filled_count) {
        *cursor = 0;
        return 0;
    }
    return list(index, &(Choice){.lacks_vectors = true, .encoder = encoder}, cursor, steps, out, count);
}

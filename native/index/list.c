/* Looks up one document, and lists all documents in the order of index_begin(). */
#include "index/structure.h"

#include "index/documents.h"
#include "index/filter.h"
#include "index/runs.h"

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

size_t index_list(const Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps, IndexDocument *out,
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
        /* A cursor within a document's first run has passed the document itself. */
        bool is_head = place.sentence == 0 && id <= place.first;
        if (is_head && document->state == DOCUMENT_LIVE && (!filter || filter_matches(filter, document)))
            out[found++] = describe(document);
        id = place.end;
    }
    *cursor = id;
    return found;
}

/* Documents that are open: their sentences come in parts, and nobody finds them before they are committed.
 *
 * An open document is known by its place, the id that index_begin() took for it: a writer cannot mistake another one's
 * for its own, but in an index that was made anew, where callers compare the document's name, too. The caller lets one
 * be open for an id at a time, and a bounded number in all: what a writer has left behind goes when its document is
 * written anew or removed, or when others need the room. Which one gives way follows from the operations alone,
 * because replicas must agree. Open documents are saved, as replicas and a server that starts again get the rest of
 * the parts.
 *
 * Ids usually tell what a ranking has seen: all that were below the next id. A document that was open then has lower
 * ids and was not seen, so its commit takes one more, and no question is watched by a ranking of before. */
#include "index/open.h"

#include "index/documents.h"

void index_keep_open(IndexPending *pending) { pending->in_parts = true; }

IndexPending *index_open_at(const Index *index, uint64_t place) {
    IndexPending *pending = index->pending;
    while (pending && pending->document->head != place) pending = pending->next;
    return pending;
}

IndexOpen index_open(const IndexPending *pending) {
    const Document *document = pending->document;
    return (IndexOpen){.id = document->bytes,
                       .fields = document_fields(document),
                       .id_length = document->id_bytes,
                       .fields_length = document->field_bytes,
                       .sentences = document->sentences,
                       .place = document->head};
}

bool index_abort_id(Index *index, const void *id, size_t length) {
    bool any = false;
    for (IndexPending *pending = index->pending, *next; pending; pending = next) {
        const Document *document = pending->document;
        next = pending->next;
        if (document->id_bytes != length || memcmp(document->bytes, id, length) != 0) continue;
        index_abort(pending);
        any = true;
    }
    return any;
}

uint64_t open_first(const Index *index) {
    uint64_t first = NO_ID;
    for (const IndexPending *pending = index->pending; pending; pending = pending->next)
        if (pending->document->head < first) first = pending->document->head;
    return first;
}

void index_make_room(Index *index) {
    unsigned count = 0;
    for (const IndexPending *pending = index->pending; pending; pending = pending->next) count++;
    for (; count >= INDEX_MAX_OPEN; count--) index_abort(index_open_at(index, open_first(index)));
}

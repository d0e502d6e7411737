/* Open documents: their sentences arrive in parts. Searches do not find open documents.
 *
 * An open document is identified by its place, the sentence id that index_begin() used for the document. Two writers
 * may write a document with the same id (name) at the same time. The places of their open documents differ, so a writer
 * never adds a part to the document of the other writer. If the index was deleted and created again, a place may
 * repeat. So callers compare the id (name) of the document, too.
 *
 * Callers open at most one document with the same id (name), and at most INDEX_MAX_OPEN documents in total. An
 * abandoned document is discarded when a document with its id is written or removed, or when it is the oldest open
 * document and the limit is reached. The choice of discarded documents depends only on the operations, because all
 * replicas must discard the same documents. Open documents are saved, so that the remaining parts can be added on
 * replicas and after a restart.
 *
 * Usually, a ranking has read all sentences with ids below index_next_id(). The exception is a document that is open
 * during the ranking: its sentences have lower ids, but the ranking has not read them. So the commit of such a document
 * uses one more id. index_watch_add() compares the ids and refuses rankings from before the commit. */
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

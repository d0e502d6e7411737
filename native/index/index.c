/* Functions on the whole index: create, free, count, digest. */
#include "index/structure.h"

#include "index/codes.h"
#include "index/dictionary.h"
#include "index/documents.h"
#include "index/memory.h"
#include "index/names.h"
#include "index/postings.h"
#include "index/runs.h"
#include "index/table.h"
#include "index/vectors.h"

Index *index_new(IndexAllocator allocator, const uint64_t key[2]) {
    codes_prepare();
    Index *index = allocator.alloc(sizeof *index);
    memset(index, 0, sizeof *index);
    index->allocator = allocator;
    index->memory = sizeof *index;
    memcpy(index->key, key, sizeof index->key);
    index->free_entry = index->free_document = index->free_name = NO_ITEM;
    index->entries.item_bytes = sizeof(Entry);
    index->documents.item_bytes = sizeof(Document *);
    index->names.item_bytes = sizeof(FieldName);
    index->work_end = &index->work;
    table_init(index, &index->term_table, dictionary_hash, dictionary_fetch);
    table_init(index, &index->document_table, documents_hash, documents_fetch);
    table_init(index, &index->name_table, field_names_hash, field_names_fetch);
    return index;
}

void index_free(Index *index) {
    documents_free(index);
    field_names_free(index);
    dictionary_free(index);
    index->allocator.free(index);
}

size_t index_memory(const Index *index) { return index->memory; }

IndexCounts index_counts(const Index *index) {
    IndexCounts counts = {
        .documents = index->document_count,
        .sentences = index->sentences,
        .terms = index->terms,
        .filled_documents = index->filled_count,
        .distinct_terms = index->term_count,
        .postings = index->postings,
        .dead_postings = index->dead_postings,
        .bytes = index->memory,
        .document_id_bytes = index->id_memory,
    };
    for (const IndexPending *pending = index->pending; pending; pending = pending->next) counts.open_documents++;
    return counts;
}

/* A constant key of the hash function for digests. The key of the index cannot be used: it is different on each server,
 * but a replica must compute the same digest as its primary. */
static const uint64_t DIGEST_KEY[2] = {0x71612d636c757374ULL, 0x65722d696e646578ULL};

/* Digests the vectors of a document. The result does not depend on the division of the vectors into parts. */
static uint64_t digest_vectors(const Index *index, const Vectors *vectors) {
    if (!vectors) return 0;
    const Encoder *encoder = &index->encoders[vectors->encoder];
    uint64_t digest = hash_bytes(DIGEST_KEY, encoder->digest, INDEX_DIGEST) ^ mix(encoder->dims);
    digest = mix(digest ^ ((uint64_t)vectors->total << 32 | vectors->stored));
    for (const Vectors *part = vectors; part; part = part->next) {
        const int8_t *values = part_values(part);
        for (uint32_t i = 0; i < part->count; i++, values += vector_bytes(encoder->dims)) {
            digest = mix(digest ^ hash_bytes(DIGEST_KEY, &part->passages[i], sizeof part->passages[i]));
            digest = mix(digest ^ hash_bytes(DIGEST_KEY, values, encoder->dims));
        }
    }
    return digest;
}

/* Digests the live documents and their runs in the order of ids. Runs of one document count as one run if no run of
 * another live document is between them. */
static uint64_t digest_documents(const Index *index) {
    uint64_t digest = 0;
    uint32_t previous = NO_ITEM;
    for (Place place = runs_from(index, 0); place.document != NO_ITEM; place = runs_from(index, place.end)) {
        const Document *document = document_at(index, place.document);
        if (document->state != DOCUMENT_LIVE) continue;
        if (place.sentence == 0) {
            digest = mix(digest ^
                         hash_bytes(DIGEST_KEY, document->bytes, (size_t)document->id_bytes + document->field_bytes));
            digest = mix(digest ^ mix(document->sentences ^ (uint64_t)document->id_bytes << 32) ^ document->terms);
            digest ^= digest_vectors(index, document->vectors);
        } else if (place.document != previous) {
            digest = mix(digest ^ hash_bytes(DIGEST_KEY, document->bytes, document->id_bytes) ^ mix(place.sentence));
        }
        previous = place.document;
    }
    return digest;
}

uint64_t index_digest(const Index *index) {
    uint64_t sum = mix(index->sentences) ^ mix(index->terms + 1);
    Decoded decoded;
    for (uint32_t term = 0; term < index->entries.items; term++) {
        const Entry *entry = entry_at(index, term);
        if (entry->form == FORM_FREE) continue;
        size_t length;
        const uint8_t *text = dictionary_text(index, entry, &length);
        uint64_t term_hash = hash_bytes(DIGEST_KEY, text, length), document_hash = 0;
        View view = postings_view(entry);
        Place place = {0};
        uint32_t hashed = NO_ITEM;
        for (uint32_t block = 0; block < view.total; block++) {
            view_decode(&view, block, &decoded);
            for (uint32_t i = 0; i < decoded.count; i++) {
                uint64_t id = decoded.base + decoded.offsets[i];
                if (!id_is_live(index, id, &place)) continue;
                const Document *document = document_at(index, place.document);
                if (place.document != hashed)
                    document_hash = hash_bytes(DIGEST_KEY, document->bytes, document->id_bytes);
                hashed = place.document;
                uint64_t sentence = place.sentence + (id - place.first);
                sum += mix(term_hash ^ mix(document_hash ^ mix(sentence << 8 | decoded.codes[i])));
            }
        }
    }
    return mix(sum) ^ digest_documents(index);
}

/* The payload of a saved index: live and open documents, in an order that the loader can read in one pass. index.h
 * defines run, posting, code and place. The payload has these records, in this order:
 *
 * - Magic: "QAINDEX3" if documents have vectors, else "QAINDEX2" if documents are open, else "QAINDEX1".
 * - The runs, in the order of their ids. Each run is one of these records:
 *   - 'd' is the first run of a live document: gap, number of sentences in this run, length of the document in terms,
 *     length of its id, the id, length of its fields, the fields.
 *   - 'o' is the first run of an open document, with the same numbers as 'd'.
 *   - 'r' is a later run of a document: gap, number of sentences in this run, ordinal of the document.
 *   The gap is the number of ids between the end of the previous run and this run. The ordinal of a document is the
 *   number of 'd' and 'o' before the 'd' or 'o' of this document.
 * - 'n': the next free id.
 * - 't' for each term: length, bytes, number of postings, and for each posting the difference from the previous id, and
 *   the code.
 * - 'v' for each document with vectors, in the order of ordinals: ordinal of the document, digest of the encoder,
 *   dimensions, total number of passages, number of passages that the index has, and these passages. A passage is: the
 *   number of sentences between the previous passage and this passage, its number of sentences, scale (4 bytes),
 *   vector.
 * - 'e': the end.
 *
 * Numbers are varints. The kind of a record ('d', 't' and so on) and a code are one byte. The first id of 'd' and 'o'
 * is the document's place, which belongs to no sentence. So the run has one id more than sentences, and the loader
 * refuses postings with the place of a document. The payload omits dead postings, and terms that have only dead
 * postings. A loaded index has the same ids. So sentences with equal scores keep their order, and cursors of
 * index_list() stay valid. The loader computes document frequencies and forward lists from the postings. */
#include "index/structure.h"

#include "index/dictionary.h"
#include "index/documents.h"
#include "index/memory.h"
#include "index/postings.h"
#include "index/runs.h"
#include "index/vectors.h"

typedef struct Writer {
    IndexWrite write;
    void *context;
    bool failed;
    size_t used;
    uint8_t bytes[INDEX_CHUNK];
} Writer;

static void flush(Writer *writer) {
    if (writer->used && !writer->failed) writer->failed = !writer->write(writer->context, writer->bytes, writer->used);
    writer->used = 0;
}

static void put_bytes(Writer *writer, const void *bytes, size_t length) {
    const uint8_t *at = bytes;
    while (length) {
        if (writer->used == INDEX_CHUNK) flush(writer);
        size_t room = INDEX_CHUNK - writer->used, part = length < room ? length : room;
        memcpy(writer->bytes + writer->used, at, part);
        writer->used += part;
        at += part;
        length -= part;
    }
}

static inline void put_number(Writer *writer, uint64_t number) {
    if (INDEX_CHUNK - writer->used < 10) flush(writer);
    writer->used = (size_t)(varint_put(writer->bytes + writer->used, number) - writer->bytes);
}

static void put_byte(Writer *writer, uint8_t byte) { put_bytes(writer, &byte, 1); }

static void save_runs(const Index *index, Writer *writer, uint32_t *ordinals) {
    uint64_t end = 0;
    uint32_t documents = 0;
    for (Place place = runs_from(index, 0); place.document != NO_ITEM; place = runs_from(index, place.end)) {
        const Document *document = document_at(index, place.document);
        if (document->state == DOCUMENT_DEAD) continue;
        uint64_t gap = place.first - end, ids = place.end - place.first;
        if (place.sentence == 0) {
            ordinals[place.document] = documents++;
            put_byte(writer, document->state == DOCUMENT_OPEN ? 'o' : 'd');
            put_number(writer, gap);
            put_number(writer, ids - 1);
            put_number(writer, document->terms);
            put_number(writer, document->id_bytes);
            put_bytes(writer, document->bytes, document->id_bytes);
            put_number(writer, document->field_bytes);
            put_bytes(writer, document_fields(document), document->field_bytes);
        } else {
            put_byte(writer, 'r');
            put_number(writer, gap);
            put_number(writer, ids);
            put_number(writer, ordinals[place.document]);
        }
        end = place.end;
    }
    put_byte(writer, 'n');
    put_number(writer, index->next_id);
}

/* Returns how many postings of a term are saved: the postings of live and open documents. Usually, this is the term's
 * document frequency. But document frequencies may lag while work is overdue, and they do not count open documents. In
 * these cases, save_terms() calls this function. */
static uint32_t count_kept(const Index *index, const View *view, Decoded *decoded) {
    uint32_t kept = 0;
    Place place = {0};
    for (uint32_t block = 0; block < view->total; block++) {
        view_decode(view, block, decoded);
        for (uint32_t i = 0; i < decoded->count; i++)
            kept += id_is_kept(index, decoded->base + decoded->offsets[i], &place);
    }
    return kept;
}

static void save_postings(const Index *index, Writer *writer, const View *view, Decoded *decoded) {
    uint64_t last = 0;
    Place place = {0};
    for (uint32_t block = 0; block < view->total; block++) {
        view_decode(view, block, decoded);
        for (uint32_t i = 0; i < decoded->count; i++) {
            uint64_t id = decoded->base + decoded->offsets[i];
            if (!id_is_kept(index, id, &place)) continue;
            put_number(writer, id - last);
            put_byte(writer, decoded->codes[i]);
            last = id;
        }
    }
}

static void save_terms(const Index *index, Writer *writer) {
    Decoded decoded;
    for (uint32_t term = 0; term < index->entries.items && !writer->failed; term++) {
        const Entry *entry = entry_at(index, term);
        if (entry->form == FORM_FREE) continue;
        View view = postings_view(entry);
        bool exact = !index->work && !index->pending;
        uint32_t kept = exact ? entry->df : count_kept(index, &view, &decoded);
        if (!kept) continue;
        size_t length;
        const uint8_t *text = dictionary_text(index, entry, &length);
        put_byte(writer, 't');
        put_number(writer, length);
        put_bytes(writer, text, length);
        put_number(writer, kept);
        save_postings(index, writer, &view, &decoded);
    }
}

static void save_part(Writer *writer, const Vectors *part, uint32_t dims, uint32_t *end) {
    const Passage *passages = part->passages;
    const int8_t *values = part_values(part);
    for (uint32_t i = 0; i < part->count; i++, values += vector_bytes(dims)) {
        uint32_t scale;
        memcpy(&scale, &passages[i].scale, sizeof scale);
        put_number(writer, passages[i].first - *end);
        put_number(writer, passages[i].count);
        for (unsigned shift = 0; shift < 32; shift += 8) put_byte(writer, (uint8_t)(scale >> shift));
        put_bytes(writer, values, dims);
        *end = passages[i].first + passages[i].count;
    }
}

static void save_vectors(const Index *index, Writer *writer, const uint32_t *ordinals) {
    for (Place place = runs_from(index, 0); place.document != NO_ITEM; place = runs_from(index, place.end)) {
        const Vectors *vectors = document_at(index, place.document)->vectors;
        uint32_t end = 0;
        if (place.sentence || !vectors) continue;
        const Encoder *encoder = &index->encoders[vectors->encoder];
        put_byte(writer, 'v');
        put_number(writer, ordinals[place.document]);
        put_bytes(writer, encoder->digest, INDEX_DIGEST);
        put_number(writer, encoder->dims);
        put_number(writer, vectors->total);
        put_number(writer, vectors->stored);
        for (const Vectors *part = vectors; part && !writer->failed; part = part->next)
            save_part(writer, part, encoder->dims, &end);
    }
}

static bool has_vectors(const Index *index) {
    IndexEncoder encoders[INDEX_MAX_ENCODERS];
    return index_encoders(index, encoders) > 0;
}

IndexStatus index_save(const Index *index, IndexWrite write, void *context) {
    size_t ordinal_bytes = (index->documents.items + 1) * sizeof(uint32_t);
    uint32_t *ordinals = index->allocator.alloc(ordinal_bytes);
    Writer *writer = index->allocator.alloc(sizeof *writer);
    writer->write = write;
    writer->context = context;
    writer->failed = false;
    writer->used = 0;
    bool vectors = has_vectors(index);
    put_bytes(writer, vectors ? "QAINDEX3" : index->pending ? "QAINDEX2" : "QAINDEX1", 8);
    save_runs(index, writer, ordinals);
    save_terms(index, writer);
    if (vectors) save_vectors(index, writer, ordinals);
    put_byte(writer, 'e');
    flush(writer);
    bool failed = writer->failed;
    index->allocator.free(writer);
    index->allocator.free(ordinals);
    return failed ? INDEX_BROKEN : INDEX_OK;
}

/* Reads a payload (the bytes of a saved index) in the format of save.c. An attacker may have written the bytes. So
 * every number is checked, and work and memory are proportional to the bytes read. The loader builds the structures
 * with the functions of normal writes. */
#include "index/structure.h"

#include "index/dictionary.h"
#include "index/documents.h"
#include "index/fields.h"
#include "index/memory.h"
#include "index/postings.h"
#include "index/runs.h"
#include "index/vectors.h"

/* A document while the loader reads the terms. Each term is added to the forward lists of its documents. */
typedef struct Growing {
    IndexPending *pending; /* NULL: a live document */
    uint8_t *forward;
    int64_t last;
    uint32_t capacity, used;
} Growing;

typedef struct Reader {
    Index *index;
    IndexRead read;
    void *context;
    bool failed, may_be_open, may_have_vectors; /* `may_..`: the payload's version allows open documents, vectors */
    unsigned open;                              /* the number of open documents */
    size_t at, used;                            /* the position in `bytes`, and how many bytes `bytes` has */
    Chunks growing; /* a Growing for each document number; document number n is the n-th document of the payload, from
                     * 0, because a new index gives its documents consecutive numbers */
    uint8_t text[INDEX_MAX_DOCUMENT_ID], fields[INDEX_MAX_FIELDS];
    uint8_t bytes[INDEX_CHUNK];
} Reader;

static bool refill(Reader *reader) {
    if (reader->failed) return false;
    size_t got = reader->read(reader->context, reader->bytes, INDEX_CHUNK);
    reader->at = 0;
    reader->used = got <= INDEX_CHUNK ? got : 0;
    return reader->used > 0;
}

static uint8_t get_byte(Reader *reader) {
    if (reader->at == reader->used && !refill(reader)) {
        reader->failed = true;
        return 0;
    }
    return reader->bytes[reader->at++];
}

/* Reads a varint. If the number is below `least` or above `most`, sets `failed` and returns 0. */
static uint64_t get_number(Reader *reader, uint64_t least, uint64_t most) {
    uint64_t number = 0;
    for (unsigned shift = 0; shift < 63; shift += 7) {
        uint8_t byte = get_byte(reader);
        number |= (uint64_t)(byte & 0x7f) << shift;
        if (byte & 0x80) continue;
        if (number < least || number > most) break;
        return number;
    }
    reader->failed = true;
    return 0;
}

static void get_bytes(Reader *reader, uint8_t *bytes, size_t length) {
    while (length && !reader->failed) {
        if (reader->at == reader->used && !refill(reader)) {
            reader->failed = true;
            return;
        }
        size_t room = reader->used - reader->at, part = length < room ? length : room;
        memcpy(bytes, reader->bytes + reader->at, part);
        reader->at += part;
        bytes += part;
        length -= part;
    }
}

static bool fail(Reader *reader) {
    reader->failed = true;
    return false;
}

/* ---- Documents and runs ---- */

static bool append_run(Reader *reader, uint32_t number, uint64_t count) {
    Index *index = reader->index;
    Document *document = document_at(index, number);
    if (count > MAX_ID - index->next_id || count >= UINT32_MAX - document->sentences) return fail(reader);
    if (!count) return true;
    runs_append(index, index->next_id, (uint32_t)count, number, document->sentences + 1);
    index->next_id += count;
    if (document->state == DOCUMENT_LIVE) {
        index->filled_count += !document->sentences;
        index->sentences += count;
    }
    document->sentences += (uint32_t)count;
    document->span = index->next_id - 1 - document->head;
    return true;
}

/* Adds a document and returns its number. For an open document, also sets *pending. NO_ITEM: another live document of
 * the payload has the id of this live document, or INDEX_MAX_OPEN documents are already open, or no number is left. */
static uint32_t restore(Reader *reader, bool open, size_t id_length, size_t fields_length, IndexPending **pending) {
    Index *index = reader->index;
    *pending = NULL;
    if (!open) {
        if (document_find(index, reader->text, id_length) != NO_ITEM) return NO_ITEM;
        return documents_restore(index, reader->text, id_length, reader->fields, fields_length);
    }
    if (reader->open++ == INDEX_MAX_OPEN) return NO_ITEM;
    *pending = documents_reopen(index, reader->text, id_length, reader->fields, fields_length);
    return *pending ? (*pending)->number : NO_ITEM;
}

static bool load_document(Reader *reader, bool open) {
    Index *index = reader->index;
    IndexPending *pending;
    uint64_t count = get_number(reader, 0, UINT32_MAX), terms = get_number(reader, 0, MAX_ID);
    size_t id_length = get_number(reader, 1, INDEX_MAX_DOCUMENT_ID);
    get_bytes(reader, reader->text, id_length);
    size_t fields_length = get_number(reader, 0, INDEX_MAX_FIELDS);
    get_bytes(reader, reader->fields, fields_length);
    if (reader->failed || (fields_length && !fields_valid(reader->fields, fields_length))) return fail(reader);
    uint32_t number = restore(reader, open, id_length, fields_length, &pending);
    if (number == NO_ITEM || chunks_add(index, &reader->growing) != number) return fail(reader);
    *(Growing *)chunks_at(&reader->growing, number) = (Growing){.pending = pending, .last = -1};
    document_at(index, number)->terms = terms;
    if (!open) index->terms += terms;
    return append_run(reader, number, count);
}

static bool load_runs(Reader *reader) {
    Index *index = reader->index;
    for (;;) {
        uint8_t kind = get_byte(reader);
        if (kind == 'n') {
            index->next_id = get_number(reader, index->next_id, MAX_ID + 1);
            return !reader->failed;
        }
        index->next_id += get_number(reader, 0, MAX_ID - index->next_id);
        if (reader->failed || index->next_id >= MAX_ID) return fail(reader);
        if (kind == 'd' || (kind == 'o' && reader->may_be_open)) {
            if (!load_document(reader, kind == 'o')) return false;
        } else if (kind == 'r') {
            uint64_t count = get_number(reader, 1, UINT32_MAX), number = get_number(reader, 0, UINT32_MAX);
            if (reader->failed || number >= index->documents.items) return fail(reader);
            if (!append_run(reader, (uint32_t)number, count)) return false;
        } else {
            return fail(reader);
        }
    }
}

/* ---- Terms ---- */

static bool grow_forward(Reader *reader, uint32_t number, uint32_t term, uint32_t count) {
    Growing *growing = chunks_at(&reader->growing, number);
    if (growing->used + FORWARD_BYTES > growing->capacity) {
        if (growing->capacity > UINT32_MAX / 4) return fail(reader);
        uint32_t wanted = growing->capacity * 2 + FORWARD_BYTES;
        growing->forward = memory_resize(reader->index, growing->forward, growing->capacity, wanted);
        growing->capacity = wanted;
    }
    growing->used = (uint32_t)(forward_put(growing->forward + growing->used, &growing->last, term, count) -
                               growing->forward);
    return true;
}

static bool load_postings(Reader *reader, uint32_t term, uint64_t count) {
    Index *index = reader->index;
    Entry *entry = entry_at(index, term);
    Place place = {0};
    uint64_t id = 0;
    uint32_t document = NO_ITEM, sentences = 0;
    for (; count; count--) {
        id += get_number(reader, 1, MAX_ID - id);
        uint8_t code = get_byte(reader);
        if (reader->failed || !code || !id_is_kept(index, id, &place)) return fail(reader);
        if (place.sentence == 0 && id == place.first) return fail(reader);
        if (place.document != document && sentences && !grow_forward(reader, document, term, sentences)) return false;
        if (place.document != document) sentences = 0;
        document = place.document;
        sentences++;
        postings_append(index, entry, id, code);
        IndexPending *pending = ((Growing *)chunks_at(&reader->growing, document))->pending;
        if (pending) pending->postings++;
        else entry->df++;
        index->postings++;
    }
    return grow_forward(reader, document, term, sentences);
}

/* Reads all terms. Sets *behind to the first byte after the terms. */
static bool load_terms(Reader *reader, uint8_t *behind) {
    for (;;) {
        *behind = get_byte(reader);
        if (*behind != 't') return !reader->failed;
        size_t length = get_number(reader, 1, INDEX_MAX_TERM);
        get_bytes(reader, reader->text, length);
        uint64_t count = get_number(reader, 1, UINT32_MAX);
        if (reader->failed) return false;
        bool is_new;
        uint32_t term = dictionary_add(reader->index, reader->text, length, &is_new);
        if (term == NO_ITEM || !is_new) return fail(reader);
        if (!load_postings(reader, term, count)) return false;
    }
}

/* ---- Vectors ---- */

static void put_u32(uint8_t *bytes, uint32_t number) {
    for (unsigned i = 0; i < 4; i++) bytes[i] = (uint8_t)(number >> 8 * i);
}

/* Reads `stored` of the document's `total` passages, which have vectors of `encoder`. Collects them as packed passages
 * in `text` of the reader, and appends the passages to the document whenever `text` is full. */
static bool load_passages(Reader *reader, Document *document, uint32_t encoder, uint32_t total, uint32_t stored) {
    const uint32_t dims = reader->index->encoders[encoder].dims;
    const size_t each = packed_passage_bytes(dims);
    uint64_t end = 0, start = 0;
    char problem[INDEX_PROBLEM];
    do {
        uint32_t count = 0;
        for (; count < stored && (count + 1) * each <= sizeof reader->text; count++) {
            uint8_t *packed = reader->text + count * each;
            uint64_t first = end + get_number(reader, 0, UINT32_MAX), sentences = get_number(reader, 1, UINT32_MAX);
            end = first + sentences;
            if (reader->failed || end > document->sentences) return fail(reader);
            put_u32(packed, (uint32_t)first);
            put_u32(packed + 4, (uint32_t)sentences);
            get_bytes(reader, packed + 8, each - 8);
        }
        if (reader->failed || !passages_check(reader->text, count * each, dims, start, document->sentences, problem))
            return fail(reader);
        vectors_append(reader->index, document, encoder, total, reader->text, count);
        start = end;
        stored -= count;
    } while (stored);
    return true;
}

/* Reads the vectors of all documents. `kind` is the first byte after the terms. In the payload, the documents must be
 * in the order of their numbers. */
static bool load_vectors(Reader *reader, uint8_t kind) {
    Index *index = reader->index;
    uint8_t digest[INDEX_DIGEST];
    for (uint64_t least = 0; kind == 'v' && reader->may_have_vectors; kind = get_byte(reader)) {
        uint64_t number = get_number(reader, least, UINT32_MAX);
        if (reader->failed || number >= index->documents.items) return fail(reader);
        least = number + 1;
        Document *document = document_at(index, (uint32_t)number);
        get_bytes(reader, digest, sizeof digest);
        uint64_t dims = get_number(reader, 1, INDEX_MAX_DIMENSIONS);
        uint64_t total = get_number(reader, 0, document->sentences), stored = get_number(reader, 0, total);
        if (reader->failed || document->state != DOCUMENT_LIVE || !document->sentences || (total && !stored))
            return fail(reader);
        uint32_t encoder = encoder_add(index, digest, (uint32_t)dims);
        if (encoder == NO_ENCODER || index->encoders[encoder].dims != dims) return fail(reader);
        if (!load_passages(reader, document, encoder, (uint32_t)total, (uint32_t)stored)) return false;
    }
    return kind == 'e' || fail(reader);
}

/* ---- The whole ---- */

/* False: an open document claims more terms than its sentences may have (INDEX_MAX_LENGTH terms for each sentence). An
 * attacker can write such a number. More sentences of this document could then raise the number above MAX_ID, and the
 * loader would refuse the next payload of the index. */
static bool may_grow(const Index *index) {
    for (const IndexPending *pending = index->pending; pending; pending = pending->next)
        if (pending->document->terms > (uint64_t)pending->document->sentences * INDEX_MAX_LENGTH) return false;
    return true;
}

static bool load(Reader *reader) {
    uint8_t magic[8];
    get_bytes(reader, magic, sizeof magic);
    if (reader->failed) return false;
    reader->may_have_vectors = memcmp(magic, "QAINDEX3", sizeof magic) == 0;
    reader->may_be_open = reader->may_have_vectors || memcmp(magic, "QAINDEX2", sizeof magic) == 0;
    if (!reader->may_be_open && memcmp(magic, "QAINDEX1", sizeof magic) != 0) return false;
    uint8_t behind;
    if (!load_runs(reader) || !may_grow(reader->index) || !load_terms(reader, &behind)) return false;
    if (!load_vectors(reader, behind)) return false;
    reader->index->embedded_from = reader->index->next_id; /* changes of vectors before the save are unknown here */
    return reader->at == reader->used && !refill(reader);
}

/* Stores the forward lists in the live and the open documents. */
static void finish(Reader *reader) {
    Index *index = reader->index;
    for (uint32_t number = 0; number < reader->growing.items; number++) {
        Growing *growing = chunks_at(&reader->growing, number);
        if (!growing->used) continue;
        if (growing->pending) {
            growing->pending->forward = growing->forward;
            growing->pending->forward_used = growing->used;
            growing->pending->forward_capacity = growing->capacity;
            growing->forward = NULL;
            continue;
        }
        Document *document = document_at(index, number);
        size_t bytes = document_bytes(document);
        document = memory_resize(index, document, bytes, bytes + growing->used);
        memcpy((uint8_t *)document + bytes, growing->forward, growing->used);
        document->forward_bytes = growing->used;
        documents_replace(index, number, document);
    }
}

Index *index_load(IndexAllocator allocator, const uint64_t key[2], IndexRead read, void *context) {
    Index *index = index_new(allocator, key);
    Reader *reader = memory_alloc(index, sizeof *reader);
    *reader = (Reader){.index = index, .read = read, .context = context, .growing.item_bytes = sizeof(Growing)};
    bool loaded = load(reader);
    if (loaded) finish(reader);
    for (uint32_t number = 0; number < reader->growing.items; number++) {
        const Growing *growing = chunks_at(&reader->growing, number);
        memory_free(index, growing->forward, growing->capacity);
    }
    chunks_free(index, &reader->growing);
    memory_free(index, reader, sizeof *reader);
    if (loaded) return index;
    index_free(index);
    return NULL;
}

/* A library with plain functions that call the index. The Python tests in tests/index call these functions. A list of
 * sentences, terms or documents is one argument: a string of bytes. */
#include "index/dot.h"
#include "index/index.h"

#include <string.h>

#include "tests/check.h"

#define EXPORT __attribute__((visibility("default")))

static const IndexAllocator ALLOCATOR = {count_alloc, count_free};

EXPORT size_t shim_held(void) { return held; }
EXPORT double shim_code_weight(int code) { return index_code_weight((uint8_t)code); }
EXPORT Index *shim_new(uint64_t key) { return index_new(ALLOCATOR, (uint64_t[2]){key, ~key}); }
EXPORT void shim_free(Index *index) { index_free(index); }

EXPORT int shim_begin(Index *index, const char *id, size_t length, const char *fields, size_t fields_length,
                      IndexPending **pending) {
    return (int)index_begin(index, id, length, fields, fields_length, pending);
}

EXPORT int shim_add(IndexPending *pending, const uint8_t *bytes, size_t length) {
    IndexPacked packed;
    if (!index_packed_check(bytes, length, &packed)) return INDEX_INVALID;
    return (int)index_add(pending, bytes, length, packed.sentences);
}

EXPORT void shim_keep_open(IndexPending *pending) { index_keep_open(pending); }
EXPORT IndexPending *shim_open_at(const Index *index, uint64_t place) { return index_open_at(index, place); }
EXPORT void shim_make_room(Index *index) { index_make_room(index); }
EXPORT int shim_abort_id(Index *index, const char *id, size_t length) { return index_abort_id(index, id, length); }
EXPORT int shim_commit(IndexPending *pending) { return (int)index_commit(pending); }
EXPORT void shim_abort(IndexPending *pending) { index_abort(pending); }
EXPORT int shim_remove(Index *index, const char *id, size_t length) { return (int)index_remove(index, id, length); }
EXPORT int shim_maintain(Index *index, int64_t budget) { return index_maintain(index, budget); }
EXPORT IndexFilter *shim_filter(Index *index, const char *bytes, size_t length) {
    return index_filter_new(index, bytes, length);
}
EXPORT void shim_filter_free(Index *index, IndexFilter *filter) { index_filter_free(index, filter); }

EXPORT int shim_embed(Index *index, const char *id, size_t length, const uint8_t *digest, uint32_t dims, uint32_t done,
                      uint32_t total, const uint8_t *passages, size_t bytes, char *problem) {
    IndexEmbedding embedding = {digest, dims, done, total, passages, bytes};
    return (int)index_embed(index, id, length, &embedding, problem);
}

/* `packed`: f32 scale, then a byte for each dimension. `numbers`: weight, missing and scan_bytes of IndexVector
 * (index/index.h). */
static IndexVector parse_vector(const uint8_t *digest, const uint8_t *packed, uint32_t dims, const double numbers[3]) {
    IndexVector vector = {.digest = digest,
                          .values = (const int8_t *)packed + 4,
                          .dims = dims,
                          .weight = numbers[0],
                          .missing = numbers[1],
                          .scan_bytes = (uint64_t)numbers[2]};
    memcpy(&vector.scale, packed, 4);
    return vector;
}

/* Reads `count` numbers of 64 bits, and then a text after its length of 32 bits. Returns the end. */
static const uint8_t *parse(const uint8_t *at, uint64_t *numbers, size_t count, const void **text, size_t *length) {
    uint32_t bytes;
    memcpy(numbers, at, 8 * count);
    memcpy(&bytes, at + 8 * count, 4);
    *text = at + 8 * count + 4;
    *length = bytes;
    return (const uint8_t *)*text + bytes;
}

static void copy_id(char *ids, size_t number, const void *id, size_t length) {
    memset(ids + number * 64, 0, 64);
    memcpy(ids + number * 64, id, length < 64 ? length : 63);
}

/* Ranks sentences.
 * - `terms` has for each term: u64 frequency, u32 length, bytes.
 * - `packed` and `numbers` are the arguments of parse_vector. `packed` NULL: no vector.
 * - Writes the id of each hit's document to `ids`, 64 bytes for each id.
 * - Writes for each hit three numbers to `scores`: score, total and cosine.
 * - Writes for each hit three numbers to `places`: sentence, first sentence of the passage, sentences of the passage.
 * - `weights` and `frequencies` are arrays of IndexRanking.
 * - Writes the number of sentences and the number of terms of the index to `totals`.
 * Returns the number of hits, or a negative error code. */
EXPORT int shim_rank(Index *index, const uint8_t *terms, size_t count, size_t k, int global, uint64_t sentences,
                     const IndexFilter *filter, const uint8_t *digest, const uint8_t *packed, uint32_t dims,
                     const double numbers[3], int distinct, char *ids, double *scores, uint32_t *places,
                     double *weights, uint64_t *frequencies, uint64_t totals[2]) {
    IndexTerm parsed[INDEX_MAX_QUESTION_TERMS];
    IndexHit *hits = calloc(k + 1, sizeof *hits);
    for (size_t i = 0; i < count; i++)
        terms = parse(terms, &parsed[i].frequency, 1, &parsed[i].bytes, &parsed[i].length);
    IndexVector vector;
    if (packed) vector = parse_vector(digest, packed, dims, numbers);
    IndexQuery query = {.terms = parsed,
                        .count = count,
                        .k = k,
                        .global = global != 0,
                        .sentences = sentences,
                        .filter = filter,
                        .vector = packed ? &vector : NULL,
                        .distinct = distinct != 0};
    IndexRanking ranking = {.hits = hits, .weights = weights, .frequencies = frequencies};
    IndexStatus status = index_rank(index, &query, &ranking);
    for (size_t i = 0; status == INDEX_OK && i < ranking.count; i++) {
        const IndexHit *hit = &hits[i];
        copy_id(ids, i, hit->document, hit->document_length);
        memcpy(scores + 3 * i, (double[]){hit->score, hit->total, hit->cosine}, 3 * sizeof *scores);
        memcpy(places + 3 * i, (uint32_t[]){hit->sentence, hit->passage, hit->passage_sentences}, 3 * sizeof *places);
    }
    free(hits);
    totals[0] = ranking.sentences;
    totals[1] = ranking.terms;
    return status == INDEX_OK ? (int)ranking.count : -(int)status;
}

EXPORT void shim_dot(int portable, const int8_t *query, const int8_t *vectors, size_t count, size_t bytes,
                     int32_t *out) {
    (portable ? dot_portable : dot_function())(query, vectors, count, bytes, out);
}

/* Lists documents. Copies their ids to `ids`, 64 bytes for each id. */
EXPORT size_t shim_list(Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps, size_t count,
                        char *ids) {
    IndexDocument *documents = calloc(count + 1, sizeof *documents);
    size_t found = index_list(index, cursor, filter, steps, documents, count);
    for (size_t i = 0; i < found; i++) copy_id(ids, i, documents[i].id, documents[i].id_length);
    free(documents);
    return found;
}

EXPORT void shim_counts(const Index *index, uint64_t out[9]) {
    IndexCounts counts = index_counts(index);
    uint64_t values[9] = {counts.documents,      counts.sentences, counts.terms,
                          counts.distinct_terms, counts.postings,  counts.dead_postings,
                          counts.open_documents, counts.bytes,     counts.document_id_bytes};
    memcpy(out, values, sizeof values);
}

EXPORT uint64_t shim_digest(const Index *index) { return index_digest(index); }

typedef struct Payload {
    char *bytes;
    size_t length, capacity, at;
} Payload;

static bool write_payload(void *context, const void *bytes, size_t length) {
    Payload *payload = context;
    if (payload->length + length > payload->capacity) {
        payload->capacity = 2 * (payload->length + length);
        payload->bytes = realloc(payload->bytes, payload->capacity);
    }
    memcpy(payload->bytes + payload->length, bytes, length);
    payload->length += length;
    return true;
}

static size_t read_payload(void *context, void *bytes, size_t length) {
    Payload *payload = context;
    size_t left = payload->length - payload->at, part = left < length ? left : length;
    memcpy(bytes, payload->bytes + payload->at, part);
    payload->at += part;
    return part;
}

/* Saves the index and loads the payload. Returns the loaded index. */
EXPORT Index *shim_again(const Index *index, uint64_t key) {
    Payload payload = {0};
    Index *loaded = NULL;
    if (index_save(index, write_payload, &payload) == INDEX_OK)
        loaded = index_load(ALLOCATOR, (uint64_t[2]){key, ~key}, read_payload, &payload);
    free(payload.bytes);
    return loaded;
}

/* ---- Watched questions ---- */

static char dropped[1 << 16];
static size_t dropped_length;

/* Records dropped questions. A report without a name is recorded as `*` and the number of questions. */
static void note_dropped(void *context, const void *name, size_t length, size_t count) {
    (void)context;
    if (name) memcpy(dropped + dropped_length, name, length);
    else length = (size_t)sprintf(dropped + dropped_length, "*%zu", count);
    dropped_length += length;
    dropped[dropped_length++] = '\n';
}

EXPORT IndexWatch *shim_watch_new(uint64_t key) {
    return index_watch_new(ALLOCATOR, (uint64_t[2]){key, ~key}, note_dropped);
}
EXPORT void shim_watch_free(IndexWatch *watch) { index_watch_free(watch); }

/* Writes the names of the questions that were dropped since the last call, one per line. Returns their length. */
EXPORT size_t shim_watch_dropped(char *names) {
    size_t length = dropped_length;
    memcpy(names, dropped, length);
    dropped_length = 0;
    return length;
}

/* Watches a question.
 * - `numbers` has the fields sentences, fewest, most, since, token and expires of IndexWatched (index/index.h), then
 *   the arguments `limit` and `now` of index_watch_add().
 * - `terms` has for each term: u64 frequency, u64 fewest, u64 most, u32 length, bytes.
 * - `documents` has for each document: u64 place, u32 length, bytes. */
EXPORT int shim_watch_add(IndexWatch *watch, Index *index, const char *name, double score, const uint64_t numbers[8],
                          const uint8_t *terms, size_t term_count, const uint8_t *documents, size_t document_count,
                          const uint8_t *filter, size_t filter_length, const uint8_t *digest, const uint8_t *packed,
                          uint32_t dims, const double vector_numbers[3]) {
    IndexVector vector;
    if (packed) vector = parse_vector(digest, packed, dims, vector_numbers);
    IndexWatchedTerm parsed[INDEX_MAX_QUESTION_TERMS];
    IndexWatchedDocument *found = calloc(document_count + 1, sizeof *found);
    for (size_t i = 0; i < term_count; i++) {
        uint64_t three[3];
        terms = parse(terms, three, 3, &parsed[i].bytes, &parsed[i].length);
        parsed[i].frequency = three[0], parsed[i].fewest = three[1], parsed[i].most = three[2];
    }
    for (size_t i = 0; i < document_count; i++)
        documents = parse(documents, &found[i].place, 1, &found[i].id, &found[i].length);
    IndexWatched question = {.name = name,
                             .name_length = strlen(name),
                             .terms = parsed,
                             .term_count = term_count,
                             .documents = found,
                             .document_count = document_count,
                             .sentences = numbers[0],
                             .fewest = numbers[1],
                             .most = numbers[2],
                             .score = score,
                             .since = numbers[3],
                             .token = numbers[4],
                             .expires = (int64_t)numbers[5],
                             .vector = packed ? &vector : NULL,
                             .filter = filter,
                             .filter_length = filter_length};
    bool added = index_watch_add(watch, index, &question, numbers[6], (int64_t)numbers[7], NULL);
    free(found);
    return added;
}

EXPORT uint64_t shim_watch_token(const IndexWatch *watch, const char *name, int64_t now) {
    return index_watch_token(watch, name, strlen(name), now);
}
EXPORT void shim_watch_removing(IndexWatch *watch, const Index *index, const char *id, size_t length) {
    index_watch_removing(watch, index, id, length);
}
EXPORT void shim_watch_adding(IndexWatch *watch, Index *index, const char *id, const uint8_t *fields,
                              size_t fields_length, const uint8_t *packed, size_t length) {
    IndexIncoming incoming = {id, fields, packed, strlen(id), fields_length, length};
    index_watch_adding(watch, index, &incoming);
}
EXPORT void shim_watch_embedded(IndexWatch *watch, Index *index, const char *id, size_t length) {
    index_watch_embedded(watch, index, id, length);
}
EXPORT void shim_watch_committing(IndexWatch *watch, const IndexPending *pending) {
    index_watch_committing(watch, pending);
}
EXPORT void shim_watch_settle(IndexWatch *watch, Index *index) { index_watch_settle(watch, index, NULL); }
EXPORT int shim_watch_review(IndexWatch *watch, Index *index, int64_t budget) {
    return index_watch_in_review(watch) && index_watch_review(watch, index, budget, NULL);
}
EXPORT int shim_watch_free_left(IndexWatch *watch, int64_t budget) { return index_watch_free_left(watch, budget); }
EXPORT void shim_watch_clear(IndexWatch *watch) { index_watch_clear(watch, NULL); }
EXPORT size_t shim_watch_count(const IndexWatch *watch) { return index_watch_count(watch); }
EXPORT size_t shim_watch_memory(const IndexWatch *watch) { return index_watch_memory(watch); }
EXPORT uint64_t shim_next_id(const Index *index) { return index_next_id(index); }

#ifndef QA_INDEX_H
#define QA_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INDEX_MAX_DOCUMENT_ID = 65536, /* bytes; at least one */
    INDEX_MAX_TERM = 256,          /* bytes; at least one */
    INDEX_MAX_FIELDS = 65536,      /* bytes of a document's fields */
    INDEX_MAX_QUESTION_TERMS = 32,
    INDEX_MAX_HITS = 1000,
    INDEX_MAX_FILTER_NODES = 256,
    INDEX_MAX_FILTER_DEPTH = 32,
    INDEX_MAX_FILTER_VALUES = 10000, /* of one `in` */
};

typedef enum IndexStatus {
    INDEX_OK,
    INDEX_INVALID, /* an argument is out of its range */
    INDEX_EXISTS,  /* a live document has this id */
    INDEX_MISSING, /* no live document has this id */
    INDEX_FULL,    /* ids, numbers or sizes have come to their end */
    INDEX_BROKEN,  /* a payload is damaged, or a callback failed */
} IndexStatus;

typedef struct Index Index;
typedef struct IndexPending IndexPending;
typedef struct IndexFilter IndexFilter;

/* alloc must not return NULL: the server's allocator ends the process instead. */
typedef struct IndexAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} IndexAllocator;

/* The key makes the hash tables unpredictable; it has no influence on any result. */
Index *index_new(IndexAllocator allocator, const uint64_t key[2]);
/* Frees open documents, too: their handles are then void. */
void index_free(Index *index);

/* ---- Writing ---- */

typedef struct IndexPosting {
    const void *term;
    uint32_t term_length;
    uint32_t frequency; /* at least 1 */
} IndexPosting;

/* The terms of a sentence are distinct. */
typedef struct IndexSentence {
    const IndexPosting *postings;
    uint32_t count;
    uint32_t length; /* in terms, with repetitions */
} IndexSentence;

/* Opens a document, which takes its place in the order of documents now and is found when it is committed. Several may be
 * open, of the same id, too. `fields` is read as fields.c says; none: NULL, 0. */
IndexStatus index_begin(Index *index, const void *id, size_t id_length, const void *fields, size_t fields_length,
                        IndexPending **pending);
/* Appends sentences. A refused call leaves a document that can only be aborted. */
IndexStatus index_add(IndexPending *pending, const IndexSentence *sentences, size_t count);
/* INDEX_EXISTS leaves the document open: remove the other and commit again. */
IndexStatus index_commit(IndexPending *pending);
void index_abort(IndexPending *pending);
IndexStatus index_remove(Index *index, const void *id, size_t length);

/* Cleans for about `budget` units of at most some 20 ns each; true when more is to be done. */
bool index_maintain(Index *index, int64_t budget);

/* ---- Asking ---- */

/* Compiles a filter, read as filter.c says; NULL when it is not valid. It is independent of the bytes it was made of. */
IndexFilter *index_filter_new(Index *index, const void *bytes, size_t length);
void index_filter_free(Index *index, IndexFilter *filter);

typedef struct IndexTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency; /* document frequency to weigh it by, when the query is global */
} IndexTerm;

typedef struct IndexQuery {
    const IndexTerm *terms; /* distinct */
    size_t count;
    size_t k;
    bool global;        /* weigh by `sentences` and the terms' frequencies instead of this index's own */
    uint64_t sentences; /* of the whole corpus */
    const IndexFilter *filter; /* NULL: none */
} IndexQuery;

typedef struct IndexHit {
    const void *document; /* its id; valid until the index is changed */
    uint32_t document_length;
    uint32_t sentence;
    double score;
} IndexHit;

/* The arrays are the caller's: k hits, k rows of a weight for each term of the query, a frequency for each term. */
typedef struct IndexRanking {
    IndexHit *hits;
    double *weights;
    uint64_t *frequencies; /* of live sentences in this index; a filter does not change them */
    size_t count;
    uint64_t sentences, terms;
} IndexRanking;

IndexStatus index_rank(Index *index, const IndexQuery *query, IndexRanking *ranking);

typedef struct IndexDocument {
    const void *id; /* pointers are valid until the index is changed */
    size_t id_length;
    const void *fields;
    size_t fields_length;
    uint32_t sentences;
    uint64_t terms;
} IndexDocument;

IndexStatus index_get(const Index *index, const void *id, size_t length, IndexDocument *document);

/* Documents in the order of index_begin from *cursor on, 0 at first, which is moved on; at the end it is 0 again. Returns at
 * most `count` of them that the filter (NULL: all) admits, fewer after `steps` documents were looked at. A document that is
 * there all the time is returned once; a cursor stays valid for ever, across index_save(), too. */
size_t index_list(const Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps, IndexDocument *documents,
                  size_t count);

typedef struct IndexCounts {
    uint64_t documents, sentences, terms; /* live; terms with repetitions */
    uint64_t distinct_terms;
    uint64_t postings, dead_postings;
    uint64_t open_documents;
    size_t bytes;             /* all that was allocated and not freed */
    size_t document_id_bytes; /* of these, for ids */
} IndexCounts;

IndexCounts index_counts(const Index *index);
size_t index_memory(const Index *index);

/* Of live documents, their fields, order, sentences and postings; reads everything. */
uint64_t index_digest(const Index *index);

/* The weight of a code; see codes.c. */
double index_code_weight(uint8_t code);

/* ---- Keeping ---- */

/* Takes `length` bytes, at most INDEX_CHUNK; returns false to give up. */
enum { INDEX_CHUNK = 65536 };
typedef bool (*IndexWrite)(void *context, const void *bytes, size_t length);
/* Fills in up to `length` bytes, at most INDEX_CHUNK; returns how many, 0 at the end or after a failure. */
typedef size_t (*IndexRead)(void *context, void *bytes, size_t length);

IndexStatus index_save(const Index *index, IndexWrite write, void *context);
/* A new index, or NULL when the payload is damaged or more follows it. */
Index *index_load(IndexAllocator allocator, const uint64_t key[2], IndexRead read, void *context);

#endif

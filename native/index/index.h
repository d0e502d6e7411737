/* An inverted index of one partition's sentences, in memory. It accepts changes between rankings, ranks exactly, and
 * removes dead data in steps.
 *
 * The index does not depend on the server: the caller provides the allocator. Only one thread at a time may use an
 * index. The index reads no clock and no random number, so the same operations make the same index on a primary and its
 * replicas.
 *
 * STRUCTURE. A sentence has an id of 48 bits. Ids ascend and are never reused. At 25,000 sentences a second, they last
 * 350 years. index_begin() uses one id for the document itself. This id is the document's place in the order of
 * documents. index_add() uses one id for each sentence. So every list of postings grows only at its end, even while
 * several documents are open. A run is a sequence of ids that a document gets at once. An array of runs maps an id to
 * its document (runs.c). An id that is in no run is dead.
 * - dictionary.c: a term has a number and an entry of 20 bytes. The entry has the position of the term's bytes, the
 *   number of live sentences that contain it, and its postings if they fit into 11 bytes (1 to 3 postings).
 * - postings.c: up to 127 postings are in a buffer of varints. If there are more postings, every 128 postings form a
 *   block, and the rest is in the buffer.
 * - blocks.c: a block has 128 differences of the same width in bits, and 128 codes. The directory of the list has the
 *   last id and the best code of each block.
 * - documents.c: a document has its id, fields, counts and a forward list. The forward list has the numbers of the
 *   document's terms, each with the number of sentences that contain the term.
 * - table.c: extendible hash tables find terms and documents.
 *
 * WEIGHTS ARE QUANTIZED. A weight is the BM25 weight without idf, in 8 bits. The error is at most 0.94 % for weights
 * from 0.02 (codes.c). More bits would cost too much memory, because the code is already half of a posting.
 *
 * EVERYTHING ELSE IS EXACT. The ranking is the true top k of the quantized weights, with edges. It uses no heuristic,
 * unless it would have to read too many vectors (`scan_bytes` of IndexVector). Of two sentences with equal scores, the
 * lower id wins. A score is a sum of doubles in the order of the query's terms; sqrt(w) * sqrt(idf) replaces
 * sqrt(w * idf).
 * The counts of sentences and terms are always exact. A commit makes a whole document visible at once, and a removal
 * makes it invisible at once. Both write only the document's state (one word), which queries read.
 * Document frequencies may lag. begin, commit, abort and remove each process WORK_PER_CALL (4,096) entries of forward
 * lists of recently committed and removed documents. If no entry is overdue, the frequencies are exact. Otherwise they
 * lag until later calls or index_maintain() have processed the rest. idf tolerates this: it uses N (the number of
 * sentences) for a frequency above N.
 *
 * THE COST OF A STEP. No step rebuilds a whole structure. A hash table splits one segment (900 items). Arrays grow by
 * chunks and copy only the pointers to the chunks (8 bytes for 1,024 terms, 24 for 256 runs, 16 for a block of 128
 * postings of one list). A removal writes a state and processes 4,096 terms. index_maintain() decodes as many postings
 * as its budget allows, but at least 2 blocks. Queries skip dead postings until an eighth of all postings are dead.
 * Then index_maintain() scans the dictionary. It removes dead postings, merges the rest into full blocks, and frees
 * terms that no document contains.
 * These calls take time in proportion to their input or to the whole index: add, commit (copies the forward list, about
 * 2 bytes a distinct term), rank, save, load, digest. A caller that must not block for a whole document adds it in
 * parts (open.c). A new term takes 0.2 to 0.5 us and a known term 0.1 us. Adding a part does not change earlier parts.
 *
 * Removal of documents needs forward lists, which cost about 2 bytes for each distinct term of a document. The cost is
 * lowest for long documents. It is highest for documents of one sentence, or if each call of index_add() adds one
 * sentence.
 *
 * REJECTED
 * - No forward lists: each ranking would have to find dead sentences to compute document frequencies, and dead postings
 *   would have to be removed often.
 * - The caller names the terms of a removed document: a wrong list would corrupt frequencies permanently.
 * - A length for each sentence and a frequency for each posting, instead of codes: this saves 5 bytes a sentence and
 *   avoids the quantization. But it costs one more cache miss for each scored posting, and an array of lengths that
 *   must be compacted when ids die.
 * - Merged segments, as in Lucene: a merge takes long or needs complex code, and a removal needs a bitmap and leaves
 *   stale frequencies. In this index ids only grow, so postings are appended in place.
 * - Ids of 32 bits, renumbered regularly: this saves 4 bytes for each block and each document. But at 1,000 sentences a
 *   second the ids last 50 days, and renumbering in steps needs a second index.
 * - A block size of 64 needs a larger directory. A block size of 256 needs more decoding for a lookup. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INDEX_MAX_DOCUMENT_ID = 65536, /* bytes; at least one */
    INDEX_MAX_TERM = 256,          /* bytes; at least one */
    INDEX_MAX_LENGTH = 65535,      /* terms of a packed sentence, and the frequency of any of them */
    INDEX_MAX_FIELDS = 65536,      /* bytes of a document's fields */
    INDEX_MAX_QUESTION_TERMS = 32,
    INDEX_MAX_HITS = 1000,
    INDEX_MAX_FILTER_NODES = 256,
    INDEX_MAX_FILTER_DEPTH = 32,
    INDEX_MAX_FILTER_VALUES = 10000, /* of one `in` */
    INDEX_MAX_OPEN = 16,             /* open documents after index_make_room() and one index_begin() */
    INDEX_DIGEST = 8,                /* bytes of an encoder's digest */
    INDEX_MAX_DIMENSIONS = 4096,     /* of a vector; at least one */
    INDEX_MAX_ENCODERS = 16,         /* with vectors in one index */
    INDEX_MAX_EMBEDDING = 1 << 20,   /* bytes of packed passages in one call */
    INDEX_MAX_SCAN = 128 << 20,      /* bytes of vectors that a ranking on a server reads */
    INDEX_PROBLEM = 200,             /* bytes of a text that says what is wrong with an argument */
};

typedef enum IndexStatus {
    INDEX_OK,
    INDEX_INVALID, /* an argument is out of its range */
    INDEX_EXISTS,  /* a live document already has this id */
    INDEX_MISSING, /* no live document has this id */
    INDEX_FULL,    /* no ids, numbers or sizes are left */
    INDEX_BROKEN,  /* a payload is damaged, or a callback failed */
} IndexStatus;

typedef struct Index Index;
typedef struct IndexPending IndexPending;
typedef struct IndexFilter IndexFilter;

/* alloc must not return NULL. The server's allocator ends the process instead. */
typedef struct IndexAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} IndexAllocator;

/* The key makes the hash tables unpredictable for clients. No result depends on it. */
Index *index_new(IndexAllocator allocator, const uint64_t key[2]);
/* Also frees open documents: their handles become invalid. */
void index_free(Index *index);

/* ---- Writing ---- */

/* Opens a document and assigns its place in the order of documents. Searches do not find the document before its
 * commit. Several documents may be open, even with the same id. fields.c has the format of `fields`; NULL, 0: no
 * fields. */
IndexStatus index_begin(Index *index, const void *id, size_t id_length, const void *fields, size_t fields_length,
                        IndexPending **pending);
/* The result of index_packed_check(). */
typedef struct IndexPacked {
    size_t sentences;
    const char *problem; /* of invalid bytes, at `offset` */
    size_t offset;
} IndexPacked;

/* Checks sentences in the format of sentences.c. False: the sentences are invalid. */
bool index_packed_check(const void *bytes, size_t length, IndexPacked *packed);
/* Appends `count` sentences that index_packed_check() has accepted. If the call fails, the caller can only abort the
 * document. */
IndexStatus index_add(IndexPending *pending, const void *bytes, size_t length, size_t count);
/* True: index_begin() accepts these fields. */
bool index_fields_valid(const void *bytes, size_t length);

/* Replaces the fields of a live document, which keeps its place. After this change, only a later ranking can be used to
 * watch a question. */
IndexStatus index_change(Index *index, const void *id, size_t length, const void *fields, size_t fields_length);

/* Makes the document live. INDEX_EXISTS: a live document has the same id, and this document stays open. Remove the live
 * document and commit again. */
IndexStatus index_commit(IndexPending *pending);
void index_abort(IndexPending *pending);
IndexStatus index_remove(Index *index, const void *id, size_t length);

/* ---- Documents in parts (open.c) ---- */

typedef struct IndexOpen {
    const void *id, *fields; /* valid until the index is changed */
    size_t id_length, fields_length;
    uint32_t sentences;
    uint64_t place; /* the id that index_begin() used for it; identifies the open document */
} IndexOpen;

/* Allows other calls on the index while the document is open. The commit of such a document uses an id, so that
 * rankings before and after the commit can be distinguished. Open documents of a loaded index are in this state. */
void index_keep_open(IndexPending *pending);
/* NULL: no document is open at that place. */
IndexPending *index_open_at(const Index *index, uint64_t place);
IndexOpen index_open(const IndexPending *pending);
/* Aborts all open documents with the id. False: no such document is open. */
bool index_abort_id(Index *index, const void *id, size_t length);
/* Aborts the oldest open documents until there is space to open another document. */
void index_make_room(Index *index);

/* ---- Vectors of passages (embed.c) ---- */

/* Packed passages of a document with the vectors of an encoder, in the format of vectors.c. */
typedef struct IndexEmbedding {
    const uint8_t *digest; /* INDEX_DIGEST bytes that name the encoder */
    uint32_t dims;         /* of a vector */
    uint32_t done;         /* number of stored passages of this encoder; 0: replaces all vectors of the document */
    uint32_t total;        /* passages of the document */
    const uint8_t *passages;
    size_t length;
} IndexEmbedding;

/* Attaches passages to a live document. When the document has all `total` passages, its vectors are complete, and
 * rankings use them. The vectors are removed with the document. A call that changes the results of rankings uses an id.
 * The following statuses mean that nothing has changed. INDEX_MISSING: the document is missing, or does not have
 * exactly `done` of `total` passages of this encoder. INDEX_INVALID, INDEX_FULL: `problem` says why. */
IndexStatus index_embed(Index *index, const void *id, size_t id_length, const IndexEmbedding *embedding,
                        char problem[INDEX_PROBLEM]);

typedef struct IndexEncoder {
    uint8_t digest[INDEX_DIGEST];
    uint32_t dims;
    uint64_t documents;       /* with complete vectors */
    uint64_t passages, bytes; /* of all documents, even if their vectors are incomplete */
} IndexEncoder;

/* Lists the encoders whose vectors are attached to documents. Returns their number. */
size_t index_encoders(const Index *index, IndexEncoder encoders[INDEX_MAX_ENCODERS]);

/* Removes dead data for about `budget` units; a unit takes at most about 20 ns. True: work is left. */
bool index_maintain(Index *index, int64_t budget);

/* ---- Ranking ---- */

/* Compiles a filter in the format of filter.c. NULL: the filter is invalid. The result does not refer to `bytes`. */
IndexFilter *index_filter_new(Index *index, const void *bytes, size_t length);
void index_filter_free(Index *index, IndexFilter *filter);

typedef struct IndexTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency; /* the document frequency that determines its weight in a global query */
} IndexTerm;

/* The vector of a question. With a vector, the score of a sentence is the BM25 score with edges, plus `weight` times a
 * cosine. The cosine compares the question's vector with the vector of the sentence's passage. It is the product of
 * both scales and the dot product of the values. */
typedef struct IndexVector {
    const uint8_t *digest; /* INDEX_DIGEST bytes that name the encoder */
    const int8_t *values;
    uint32_t dims;
    float scale;         /* not negative */
    double weight;       /* finite, not negative */
    double missing;      /* the cosine of a sentence without a vector of this encoder; finite */
    uint64_t scan_bytes; /* the most bytes of vectors to read; above this limit, only the best sentences by words are
                          * compared */
} IndexVector;

typedef struct IndexQuery {
    const IndexTerm *terms; /* distinct */
    size_t count;
    size_t k;
    bool global;               /* weight by `sentences` and the terms' frequencies, not by the counts of the index */
    uint64_t sentences;        /* of the whole corpus */
    const IndexFilter *filter; /* NULL: no filter */
    uint64_t since;            /* the lowest sentence id to rank */
    bool open;                 /* rank only sentences of open documents; false: only of live documents */
    const IndexVector *vector; /* NULL: rank by words only */
    bool distinct;             /* with a vector: only the best sentence of each passage */
    const double *idf;         /* NULL, or the idf of each term, which replaces the idf of the frequencies */
    const uint64_t *place;     /* NULL, or the place of the only document to search */
} IndexQuery;

typedef struct IndexHit {
    const void *document; /* its id; valid until the index is changed */
    uint32_t document_length;
    uint32_t sentence;
    double score;   /* by words; 0: the sentence contains no term of the question */
    double total;   /* the score of the ranking */
    uint64_t place; /* the place of the document; a document that is added again gets a different place */
    double cosine;  /* with a vector; NAN: the sentence has no vector of this encoder */
    uint32_t passage, passage_sentences; /* the passage's first sentence, and the number of its sentences */
} IndexHit;

/* The result of a ranking. The caller provides the arrays: k hits, k rows with a weight for each term of the query, and
 * a frequency for each term. */
typedef struct IndexRanking {
    IndexHit *hits;
    double *weights;
    uint64_t *frequencies; /* of the terms in live sentences of this index, without the filter */
    size_t count;
    uint64_t sentences, terms;
} IndexRanking;

/* Ranks sentences. Without a vector, the candidates are the sentences that contain a term of the question. With a
 * vector, the first sentence of each passage with a vector of the question's encoder is also a candidate. */
IndexStatus index_rank(Index *index, const IndexQuery *query, IndexRanking *ranking);
/* The next id that the index will use. All current ids are lower. */
uint64_t index_next_id(const Index *index);

typedef struct IndexDocument {
    const void *id; /* pointers are valid until the index is changed */
    size_t id_length;
    const void *fields;
    size_t fields_length;
    uint32_t sentences;
    uint64_t terms;
} IndexDocument;

IndexStatus index_get(const Index *index, const void *id, size_t length, IndexDocument *document);

/* Lists documents in the order of index_begin(), from *cursor on, and advances the cursor. A cursor is 0 at the start
 * and at the end. Returns at most `count` documents that satisfy the filter (NULL: all documents). Stops after `steps`
 * runs, so it may return fewer documents. If a document stays in the index, a complete listing returns it exactly once.
 * A cursor stays valid, even across index_save(). */
size_t index_list(const Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps,
                  IndexDocument *documents, size_t count);

/* Lists documents like index_list(), but only documents with sentences whose vectors of the encoder are missing or
 * incomplete. */
size_t index_unembedded(const Index *index, const uint8_t digest[INDEX_DIGEST], uint64_t *cursor, size_t steps,
                        IndexDocument *documents, size_t count);

/* ---- Fields ---- */

typedef struct IndexField {
    const void *name; /* valid until the index is changed */
    size_t length;
    uint64_t documents;                       /* live documents that have the field */
    uint64_t booleans, numbers, texts, times; /* the number of its values of each type */
} IndexField;

/* The number of live documents that have the field. */
uint64_t index_field_documents(const Index *index, const void *name, size_t length);
/* Lists fields from *cursor on, and advances the cursor. A cursor is 0 at the start and at the end. If a field stays in
 * the index, a complete listing returns it exactly once. A cursor is valid only in this index, not in an index that was
 * loaded from index_save(). */
size_t index_fields(const Index *index, uint64_t *cursor, IndexField *fields, size_t count);

typedef struct IndexCompletion {
    const void *bytes; /* valid until the index is changed */
    size_t length;
    uint64_t frequency; /* live sentences that contain the term */
} IndexCompletion;

/* Finds the `count` most frequent terms that start with the prefix. The most frequent term comes first; equally
 * frequent terms are in the order of their bytes. Reads the first `steps` terms that were added to the index. Sets *all
 * to true if the index has no more terms. Returns the number of completions. */
size_t index_complete(const Index *index, const void *prefix, size_t length, size_t steps, IndexCompletion *completions,
                      size_t count, bool *all);

enum { INDEX_MAX_VALUES = 32768 }; /* at least the values of one document: INDEX_MAX_FIELDS / 2 */

typedef struct IndexValue {
    const void *value; /* in the format of fields.c; valid until the index is changed */
    size_t length;
    uint64_t documents; /* documents that have the value */
    uint64_t last;      /* the place of the last of these documents */
} IndexValue;

typedef struct IndexValueTotals {
    uint64_t documents;  /* documents that the filter admits */
    uint64_t with_field; /* of these, the documents that have the field */
} IndexValueTotals;

/* Counts the distinct values of a field in documents that satisfy the filter (NULL: all documents). Starts at *cursor,
 * as index_list() does, and stops after about `steps` documents. The caller provides INDEX_MAX_VALUES values. Returns
 * the number of values. Several calls may return the same value. `length` is 1 to 255. */
size_t index_values(Index *index, uint64_t *cursor, const void *name, size_t length, const IndexFilter *filter,
                    size_t steps, IndexValue *values, IndexValueTotals *totals);

typedef struct IndexCounts {
    uint64_t documents, sentences, terms; /* live; terms with repetitions */
    uint64_t filled_documents;            /* live documents with sentences */
    uint64_t distinct_terms;
    uint64_t postings, dead_postings;
    uint64_t open_documents;
    size_t bytes;             /* allocated and not freed */
    size_t document_id_bytes; /* of these, the bytes of ids */
} IndexCounts;

IndexCounts index_counts(const Index *index);
size_t index_memory(const Index *index);

/* Returns a digest of live documents, their fields, order, sentences and postings. Reads the whole index. */
uint64_t index_digest(const Index *index);

/* The weight of a code; see codes.c. */
double index_code_weight(uint8_t code);

/* ---- Watched questions (watch.c) ---- */

/* Questions with cached answers, for one key. The index of the key may be replaced. The first write that may change the
 * answer of a question drops the question. Until then the ranking of the answer is valid. */
typedef struct IndexWatch IndexWatch;

typedef struct IndexWatchedTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency;    /* the frequency that determined its weight */
    uint64_t fewest, most; /* the bounds for the number of sentences of this index that contain it */
} IndexWatchedTerm;

typedef struct IndexWatchedDocument {
    const void *id;
    size_t length;
    uint64_t place; /* as in the ranking */
} IndexWatchedDocument;

enum { INDEX_MAX_WATCHED_NAME = 256, INDEX_MAX_WATCHED_DOCUMENTS = 1000 };

typedef struct IndexWatched {
    const void *name; /* the name of the answer; 1 to INDEX_MAX_WATCHED_NAME bytes */
    size_t name_length;
    const IndexWatchedTerm *terms; /* distinct */
    size_t term_count;
    const IndexWatchedDocument *documents; /* the documents of this index that the answer uses; distinct */
    size_t document_count;
    uint64_t sentences;        /* of the whole corpus; determines the weights */
    uint64_t fewest, most;     /* the bounds for the number of sentences in this index */
    double score;              /* a new sentence with at least this score may change the answer */
    uint64_t since;            /* index_next_id() at the time of the ranking */
    uint64_t token;            /* identifies this watch; never 0 */
    int64_t expires;           /* in milliseconds of the caller's clock */
    const IndexVector *vector; /* NULL, or the vector of the ranking; then `score` is the sum of BM25 and weighted
                                * cosine */
    const void *filter;        /* a valid filter: only sentences of admitted documents concern the question */
    size_t filter_length;      /* 0: no filter */
} IndexWatched;

/* The callback that reports a dropped question, with the count 1. If a call drops more than INDEX_TOLD_BY_NAME
 * questions, there is one report without a name (NULL, 0), and any question may have been dropped. index_watch_free()
 * reports nothing. The callback must not call functions of the watch. */
enum { INDEX_TOLD_BY_NAME = 500 };
typedef void (*IndexDropped)(void *context, const void *name, size_t length, size_t count);

IndexWatch *index_watch_new(IndexAllocator allocator, const uint64_t key[2], IndexDropped dropped);
void index_watch_free(IndexWatch *watch);
/* Watches a question. If `limit` questions are already watched, drops the oldest question. Returns false, and changes
 * nothing, in these cases:
 * - The index has changed since the ranking, and the change may change the answer.
 * - The commit of an open document would change the answer.
 * - The terms of a long document are still being counted.
 * The new question replaces a watched question of the same name. Clients may still cache answers of the replaced
 * question. So a write that would have dropped the replaced question drops the new question. If the two questions
 * differ in terms or filters, the replaced question is dropped now. */
bool index_watch_add(IndexWatch *watch, Index *index, const IndexWatched *question, size_t limit, int64_t now,
                     void *context);
/* Returns the token of a watched question. 0: no such question is watched. */
uint64_t index_watch_token(const IndexWatch *watch, const void *name, size_t length, int64_t now);

/* A document that is being added: valid id, fields and packed sentences. */
typedef struct IndexIncoming {
    const void *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
} IndexIncoming;

/* Removes expired questions. */
void index_watch_expire(IndexWatch *watch, int64_t now);

/* Drops the questions that new vectors may concern. Call it after a call of index_embed() that has used an id. */
void index_watch_embedded(IndexWatch *watch, Index *index, const void *id, size_t length);
/* A writer must call these functions:
 * - To replace only the fields of a document: index_watch_changing() before the change, then index_watch_settle(). This
 *   drops questions that were answered from the document, and questions whose filter accepts the document only with the
 *   new fields.
 * - For every other write: index_watch_removing() before the removal of a document, index_watch_adding() for valid new
 *   sentences before their commit, index_watch_committing() before the commit of a document whose parts were added in
 *   earlier writes, and at the end index_watch_settle(), which reports the dropped questions.
 *
 * index_watch_settle() also counts overdue terms, so that frequencies are exact while questions are watched. If this
 * takes more than some milliseconds, it stops. Then the caller must call index_watch_review() until it returns false.
 * index_watch_review() continues counting and compares all frequencies, for about `budget` units at a time. Until then,
 * rankings and watched questions use the earlier frequencies. */
void index_watch_removing(IndexWatch *watch, const Index *index, const void *id, size_t length);
void index_watch_changing(IndexWatch *watch, Index *index, const IndexIncoming *document);
void index_watch_adding(IndexWatch *watch, Index *index, const IndexIncoming *document);
void index_watch_committing(IndexWatch *watch, const IndexPending *pending);
void index_watch_settle(IndexWatch *watch, Index *index, void *context);
bool index_watch_in_review(const IndexWatch *watch);
bool index_watch_review(IndexWatch *watch, Index *index, int64_t budget, void *context);

/* Drops all questions. */
void index_watch_clear(IndexWatch *watch, void *context);

/* Dropping many questions may leave memory to free. index_watch_free_left() frees it, for about `budget` units at a
 * time, and returns true if more is left. Only index_watch_memory() counts this memory. */
bool index_watch_has_left(const IndexWatch *watch);
bool index_watch_free_left(IndexWatch *watch, int64_t budget);

/* The number of watched questions. */
size_t index_watch_count(const IndexWatch *watch);
size_t index_watch_memory(const IndexWatch *watch);

/* ---- Saving and loading ---- */

/* Writes `length` bytes, at most INDEX_CHUNK. False: saving must stop. */
enum { INDEX_CHUNK = 65536 };
typedef bool (*IndexWrite)(void *context, const void *bytes, size_t length);
/* Reads up to `length` bytes, at most INDEX_CHUNK, and returns their number; 0: the end, or a failure. */
typedef size_t (*IndexRead)(void *context, void *bytes, size_t length);

IndexStatus index_save(const Index *index, IndexWrite write, void *context);
/* Returns a new index. NULL: the payload is damaged, or more bytes follow it. */
Index *index_load(IndexAllocator allocator, const uint64_t key[2], IndexRead read, void *context);

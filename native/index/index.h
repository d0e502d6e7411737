/* An inverted index of one partition's sentences, in memory. The index accepts changes between rankings, ranks exactly,
 * and removes dead data in steps.
 *
 * The index does not depend on the server: the caller provides the allocator. Only one thread at a time may use an
 * index. The index reads no clock and no random number, so the same operations make the same index on a primary and its
 * replicas.
 *
 * WORDS of the files in this folder:
 * - A document is open after index_begin(), live after index_commit(), and dead after its removal or abort. Sentences
 *   and postings are live or dead with their document.
 * - An id, or sentence id, is a number that the index gives to each sentence and to each document (see STRUCTURE). But
 *   "the id of a document" is a string of bytes: the name that the caller gives to the document.
 * - A document's place, or own id, is the sentence id that index_begin() used for the document.
 * - A run is a range of consecutive sentence ids of one document.
 * - A posting says that a term is in a sentence. It has the id of the sentence, and a code.
 * - A code is the weight of a term in a sentence, in 8 bits (codes.c).
 * - The document frequency (df) of a term is the number of live sentences that contain the term. BM25's "document" is a
 *   sentence here.
 * - A passage is a range of sentences of one document that share one vector. The model that makes the vectors is the
 *   encoder.
 * - A payload is the bytes of a saved index (save.c).
 * - A unit is an amount of work that takes at most about 20 ns. A budget is a number of units.
 * - Edges are the part of a score for pairs of terms in the same sentence (codes.h).
 *
 * STRUCTURE. A sentence has an id of 48 bits. Ids ascend and are never reused. At 25,000 sentences a second, the ids
 * last 350 years. index_begin() uses one id for the document itself: the document's place. Documents are ordered by
 * their places. index_add() uses one id for each sentence. So every list of postings grows only at its end, even while
 * several documents are open. An array of runs maps an id to its document (runs.c). An id that is in no run is dead.
 * - dictionary.c: a term has a number and an entry of 20 bytes. The entry has the position of the term's bytes, the
 *   term's document frequency, and its postings if they fit into 11 bytes (usually 1 to 3 postings, at most 5).
 * - postings.c: a term with up to 127 postings has them in a buffer of varints. If a term has more postings, the first
 *   postings are in blocks, usually 128 in each block, and the buffer has the postings after the last block.
 * - blocks.c: a block has the codes of its postings, and the differences between their ids. All differences of a block
 *   have the same width in bits. The directory of a list of blocks has the last id and the best code of each block.
 * - documents.c: a document has its id, fields, counts and a forward list. The forward list has the numbers of the
 *   document's terms, each with the number of sentences that contain the term.
 * - table.c: extendible hash tables find terms and documents.
 *
 * WEIGHTS ARE QUANTIZED. A code represents the BM25 weight without idf, in 8 bits. For weights of 0.02 and more, the
 * error is at most 0.94 % (codes.c). More bits would cost too much memory, because the code is already half of a
 * posting.
 *
 * EVERYTHING ELSE IS EXACT. The ranking is the true top k of the quantized weights, with edges. The ranking uses no
 * heuristic, unless the vectors to read have too many bytes (`scan_bytes` of IndexVector). Of two sentences with equal
 * scores, the lower id wins. A score is a sum of doubles in the order of the query's terms. The square root of a
 * product weight * idf is computed as sqrt(weight) * sqrt(idf), so that a table can have the roots of all weights. The
 * counts of sentences and terms are always exact. A commit makes a whole document visible at once, and a removal makes
 * the whole document invisible at once. Neither call changes a posting: rankings read the state of the document (open,
 * live or dead) and skip the postings of other documents. Document frequencies may lag. index_commit() adds the terms
 * of a document to the frequencies, and index_remove() subtracts them. Both calls queue this work. index_begin(),
 * index_commit(), index_abort() and index_remove() each process up to WORK_PER_CALL (4,096) units of the queued work.
 * Here, a unit is one entry of a forward list, or one run. Work that is still in the queue is overdue. The frequencies
 * are exact if no work is overdue. If work is overdue, the frequencies lag until later calls or index_maintain() have
 * done the work. A lagging frequency can be above N, the number of sentences. Then idf uses N instead of the frequency.
 *
 * THE COST OF A CHANGE. All structures change in small steps. No step rebuilds a whole structure:
 * - A hash table that grows splits one segment (about 900 items).
 * - An array that grows adds a chunk and copies only the directory of its chunks. The directory has 8 bytes for 1,024
 *   terms, 24 bytes for 256 runs, and 16 bytes for a block of 128 postings of one list.
 * - A removal changes the state of the document, subtracts its fields from the counts of the fields, frees its vectors,
 *   and processes at most 4,096 units of the queued work.
 * - index_maintain() stops when its budget is used up. But if it has started to decode a list of blocks, it decodes at
 *   least 2 blocks, even if the budget is smaller.
 * Rankings skip dead postings. When an eighth of all postings (and at least 64) are dead, index_maintain() starts to
 * scan the dictionary. This scan removes dead postings, merges the remaining postings into full blocks, and frees terms
 * that no document contains.
 * These calls take time in proportion to their input or to the whole index: add, commit and change (both copy the
 * forward list, about 2 bytes a distinct term), rank, save, load, digest. A caller that must not block for a whole
 * document adds it in parts (open.c). Adding a posting takes 0.2 to 0.5 us if the term is new, and 0.1 us if the index
 * has the term.
 *
 * Removal of documents needs forward lists, which cost about 2 bytes for each distinct term of a document. The cost is
 * lowest for long documents. The cost is highest for documents of one sentence, or if each call of index_add() adds one
 * sentence.
 *
 * REJECTED
 * - No forward lists: each ranking would have to find dead sentences to compute document frequencies, and dead postings
 *   would have to be removed often.
 * - The caller names the terms of a removed document: a wrong list would corrupt frequencies permanently.
 * - A length for each sentence and a frequency for each posting, instead of codes: this would save 5 bytes a sentence
 *   and avoid the quantization. But each scored posting would cost one more cache miss, and the array of lengths would
 *   have to be compacted when ids die.
 * - Merged segments, as in Lucene: a merge takes long or needs complex code, and a removal needs a bitmap and leaves
 *   stale frequencies. In this index ids only grow, so postings are appended in place.
 * - Ids of 32 bits, renumbered regularly: this would save 4 bytes for each block and each document. But at 1,000
 *   sentences a second, 32 bits last 50 days, and renumbering in steps needs a second index.
 * - A block size of 64 needs a larger directory. A block size of 256 needs more decoding for a lookup. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INDEX_MAX_DOCUMENT_ID = 65536, /* bytes of a document's id; at least one */
    INDEX_MAX_TERM = 256,          /* bytes of a term; at least one */
    INDEX_MAX_LENGTH = 65535,      /* terms of a packed sentence; also the limit for the frequency of one term in it */
    INDEX_MAX_FIELDS = 65536,      /* bytes of a document's fields */
    INDEX_MAX_QUESTION_TERMS = 32,
    INDEX_MAX_HITS = 1000,
    INDEX_MAX_FILTER_NODES = 256,
    INDEX_MAX_FILTER_DEPTH = 32,
    INDEX_MAX_FILTER_VALUES = 10000, /* values of one `in` or `not in` */
    INDEX_MAX_OPEN = 16,             /* the most documents that index_make_room() and then index_begin() leave open */
    INDEX_DIGEST = 8,                /* bytes of an encoder's digest */
    INDEX_MAX_DIMENSIONS = 4096,     /* dimensions of a vector; at least one */
    INDEX_MAX_ENCODERS = 16,         /* encoders whose vectors are in one index */
    INDEX_MAX_EMBEDDING = 1 << 20,   /* bytes of packed passages in one call */
    INDEX_MAX_SCAN = 128 << 20,      /* the server's limit for the bytes of vectors that a ranking reads */
    INDEX_PROBLEM = 200,             /* bytes of a text that says what is wrong with an argument */
};

typedef enum IndexStatus {
    INDEX_OK,
    INDEX_INVALID, /* an argument is out of its range */
    INDEX_EXISTS,  /* a live document already has this id */
    INDEX_MISSING, /* no live document has this id */
    INDEX_FULL,    /* no ids, numbers or sizes are left */
    INDEX_BROKEN,  /* index_save(): the callback has stopped the saving */
} IndexStatus;

typedef struct Index Index;
typedef struct IndexPending IndexPending;
typedef struct IndexFilter IndexFilter;

/* alloc must not return NULL. If no memory is left, the server's allocator ends the process. */
typedef struct IndexAllocator {
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
} IndexAllocator;

/* Returns a new, empty index. The key makes the hash tables unpredictable for clients. No result depends on the key. */
Index *index_new(IndexAllocator allocator, const uint64_t key[2]);
/* Frees the index with its documents, including the open documents. Every IndexPending of this index becomes
 * invalid. */
void index_free(Index *index);

/* ---- Writing ---- */

/* Opens a document and assigns its place in the order of documents. Rankings and lists do not find the document before
 * its commit. Several documents may be open, even with the same id. fields.c has the format of `fields`; NULL, 0: no
 * fields. *pending is the handle of the open document, until its commit or abort. */
IndexStatus index_begin(Index *index, const void *id, size_t id_length, const void *fields, size_t fields_length,
                        IndexPending **pending);
/* The result of index_packed_check(). */
typedef struct IndexPacked {
    size_t sentences;
    const char *problem; /* why the bytes at `offset` are invalid */
    size_t offset;
} IndexPacked;

/* Checks sentences in the format of sentences.c. False: the sentences are invalid. */
bool index_packed_check(const void *bytes, size_t length, IndexPacked *packed);
/* Appends `count` sentences that index_packed_check() has accepted. If the call fails, the caller can only abort the
 * document. */
IndexStatus index_add(IndexPending *pending, const void *bytes, size_t length, size_t count);
/* True: index_begin() accepts these fields. */
bool index_fields_valid(const void *bytes, size_t length);

/* Replaces the fields of a live document, which keeps its place. index_watch_add() refuses rankings from before this
 * change. */
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
    uint64_t place; /* the document's place; identifies the open document */
} IndexOpen;

/* Marks a document that stays open while the caller makes other calls on the index, such as rankings. The commit of a
 * marked document uses one more id. So a ranking before the commit has a lower index_next_id() than a ranking after the
 * commit (open.c). The open documents of a loaded index are marked. */
void index_keep_open(IndexPending *pending);
/* Returns the open document with this place. NULL: no document is open at this place. */
IndexPending *index_open_at(const Index *index, uint64_t place);
IndexOpen index_open(const IndexPending *pending);
/* Aborts all open documents with the id. False: no such document is open. */
bool index_abort_id(Index *index, const void *id, size_t length);
/* Aborts the oldest open documents until fewer than INDEX_MAX_OPEN documents are open. */
void index_make_room(Index *index);

/* ---- Vectors of passages (embed.c) ---- */

/* Packed passages of a document with the vectors of an encoder, in the format of vectors.c. */
typedef struct IndexEmbedding {
    const uint8_t *digest; /* INDEX_DIGEST bytes that name the encoder */
    uint32_t dims;         /* the number of values of a vector */
    uint32_t done;         /* how many passages of this encoder earlier calls have stored; 0: the call first removes all
                            * vectors of the document */
    uint32_t total;        /* how many passages the document has in all calls together */
    const uint8_t *passages;
    size_t length;
} IndexEmbedding;

/* Attaches passages to a live document. When the document has all `total` passages, its vectors are complete, and
 * rankings use them. The vectors are removed with the document. A call that changes the results of rankings uses one
 * more id, so index_next_id() grows. The following statuses mean that nothing has changed:
 * - INDEX_MISSING: the document is missing; or `done` is not 0, and the document does not have exactly `done` of
 *   `total` passages of this encoder.
 * - INDEX_INVALID, INDEX_FULL: `problem` says why. */
IndexStatus index_embed(Index *index, const void *id, size_t id_length, const IndexEmbedding *embedding,
                        char problem[INDEX_PROBLEM]);

typedef struct IndexEncoder {
    uint8_t digest[INDEX_DIGEST];
    uint32_t dims;
    uint64_t documents;       /* documents that have complete vectors of this encoder */
    uint64_t passages, bytes; /* of all documents, even if their vectors are incomplete */
} IndexEncoder;

/* Lists the encoders whose vectors are attached to documents. Returns their number. */
size_t index_encoders(const Index *index, IndexEncoder encoders[INDEX_MAX_ENCODERS]);

/* Cleans the index for about `budget` units; a unit takes at most about 20 ns. First does the overdue work on document
 * frequencies, and then removes dead data. True: work is left. */
bool index_maintain(Index *index, int64_t budget);

/* ---- Ranking ---- */

/* Compiles a filter in the format of filter.c. NULL: the filter is invalid. The result does not refer to `bytes`. */
IndexFilter *index_filter_new(Index *index, const void *bytes, size_t length);
void index_filter_free(Index *index, IndexFilter *filter);

typedef struct IndexTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency; /* the document frequency that determines the term's idf in a `global` query */
} IndexTerm;

/* The vector of a question. With a vector, the score of a sentence is the score by words (the BM25 score with edges),
 * plus `weight` times a cosine. The cosine compares the question's vector with the vector of the sentence's passage. A
 * vector is its scale times its values. So the cosine is the product of both scales and the dot product of the values
 * of both vectors. */
typedef struct IndexVector {
    const uint8_t *digest; /* INDEX_DIGEST bytes that name the encoder */
    const int8_t *values;
    uint32_t dims;
    float scale;         /* not negative */
    double weight;       /* finite, not negative */
    double missing;      /* the cosine of a sentence without a vector of this encoder; finite */
    uint64_t scan_bytes; /* the most bytes of vectors to read; if the passages have more, only the INDEX_MAX_HITS best
                          * sentences by words are ranked with their cosines */
} IndexVector;

typedef struct IndexQuery {
    const IndexTerm *terms;    /* distinct */
    size_t count;              /* the number of terms */
    size_t k;                  /* the maximum number of hits, at most INDEX_MAX_HITS */
    bool global;               /* true: idf uses `sentences` and the frequencies in `terms`, which are sums over several
                                * indexes; false: idf uses the counts of this index */
    uint64_t sentences;        /* in a global query: the sentences of the whole corpus */
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
    uint32_t sentence; /* the number of the sentence in its document, from 0 */
    double score;      /* the score by words; 0: the sentence contains no term of the question */
    double total;      /* the score that orders the hits: the score by words, plus the weighted cosine of a vector */
    uint64_t place;    /* the place of the document; a document that is added again gets a different place */
    double cosine;     /* NAN: the query has no vector, or the sentence has no vector of the query's encoder */
    uint32_t passage, passage_sentences; /* the number of the passage's first sentence (from 0), and how many sentences
                                          * the passage has */
} IndexHit;

/* The result of a ranking. The caller provides the arrays: k hits, k rows with a weight for each term of the query, and
 * a frequency for each term. */
typedef struct IndexRanking {
    IndexHit *hits;
    double *weights;
    uint64_t *frequencies;     /* the document frequencies of the query's terms in this index, without the filter */
    size_t count;              /* the number of hits that were found */
    uint64_t sentences, terms; /* all live sentences of this index, and their terms with repetitions */
} IndexRanking;

/* Ranks sentences. The candidates are the sentences that contain a term of the question. With a vector, the first
 * sentence of each passage with a vector of the question's encoder is also a candidate, unless the vectors have more
 * than `scan_bytes`. */
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
 * runs, so the call may return fewer documents before the end of the list. If a document stays in the index, a complete
 * listing returns the document exactly once. A cursor stays valid when the index changes. The cursor is also valid in
 * an index that was loaded from index_save(). */
size_t index_list(const Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps,
                  IndexDocument *documents, size_t count);

/* Lists documents like index_list(), but only documents that have sentences and lack complete vectors of the encoder.
 */
size_t index_unembedded(const Index *index, const uint8_t digest[INDEX_DIGEST], uint64_t *cursor, size_t steps,
                        IndexDocument *documents, size_t count);

/* ---- Fields ---- */

typedef struct IndexField {
    const void *name; /* valid until the index is changed */
    size_t length;
    uint64_t documents;                       /* live documents that have the field */
    uint64_t booleans, numbers, texts, times; /* how many values of each type the field has in these documents */
} IndexField;

/* The number of live documents that have the field. */
uint64_t index_field_documents(const Index *index, const void *name, size_t length);
/* Lists at most `count` fields from *cursor on, and advances the cursor. Returns the number of listed fields. A cursor
 * is 0 at the start and at the end. If a field stays in the index, a complete listing returns the field exactly once. A
 * cursor is valid only in this index, not in an index that was loaded from index_save(). */
size_t index_fields(const Index *index, uint64_t *cursor, IndexField *fields, size_t count);

typedef struct IndexCompletion {
    const void *bytes; /* valid until the index is changed */
    size_t length;
    uint64_t frequency; /* live sentences that contain the term */
} IndexCompletion;

/* Finds the `count` most frequent terms that start with the prefix. The most frequent term comes first; equally
 * frequent terms are in the order of their bytes. Reads only the terms with numbers below `steps`, usually the terms
 * that were added first. Sets *all to true if these are all terms of the index, otherwise to false. Returns the number
 * of completions. */
size_t index_complete(const Index *index, const void *prefix, size_t length, size_t steps, IndexCompletion *completions,
                      size_t count, bool *all);

/* The most values that a call of index_values() returns. No document has more values, because a value has at least 2
 * bytes, and the fields of a document have at most INDEX_MAX_FIELDS bytes. */
enum { INDEX_MAX_VALUES = 32768 };

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

/* Counts the distinct values of a field in documents that satisfy the filter (NULL: all documents). Starts at *cursor
 * and advances the cursor, as index_list() does. A call stops when the values have about 256 KiB, when the values of
 * the next document may not fit into `values`, or after `steps` steps. Each run takes one step, and a document takes
 * one more step for every 256 bytes of its fields. `values` has space for INDEX_MAX_VALUES values. Returns the number
 * of values of this call. Several calls of one listing may return the same value; the caller adds their counts.
 * `length` is the length of the name, 1 to 255. */
size_t index_values(Index *index, uint64_t *cursor, const void *name, size_t length, const IndexFilter *filter,
                    size_t steps, IndexValue *values, IndexValueTotals *totals);

typedef struct IndexCounts {
    uint64_t documents, sentences, terms; /* of live documents; `terms` counts repetitions */
    uint64_t filled_documents;            /* live documents with sentences */
    uint64_t distinct_terms;
    uint64_t postings, dead_postings;
    uint64_t open_documents;
    size_t bytes;             /* memory that the index has allocated and not freed */
    size_t document_id_bytes; /* of these bytes, the bytes of documents' ids */
} IndexCounts;

IndexCounts index_counts(const Index *index);
size_t index_memory(const Index *index);

/* Returns a digest of live documents, their fields, order, sentences and postings. Reads the whole index. */
uint64_t index_digest(const Index *index);

/* The weight of a code; see codes.c. */
double index_code_weight(uint8_t code);

/* ---- Watched questions (watch.c) ---- */

/* The watched questions of one partition. The answer of a watched question is cached, and no write has changed the
 * ranking behind the answer since. The first write that may change the answer drops the question: the index stops
 * watching the question and reports its name (IndexDropped). An IndexWatch is separate from the index, so that the
 * caller may replace the index of the partition. */
typedef struct IndexWatch IndexWatch;

typedef struct IndexWatchedTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency;    /* the document frequency in the whole corpus; determined the term's idf in the ranking */
    uint64_t fewest, most; /* the bounds for the term's document frequency in this index */
} IndexWatchedTerm;

typedef struct IndexWatchedDocument {
    const void *id;
    size_t length;
    uint64_t place; /* the document's place (IndexHit) in the ranking */
} IndexWatchedDocument;

enum { INDEX_MAX_WATCHED_NAME = 256, INDEX_MAX_WATCHED_DOCUMENTS = 1000 };

typedef struct IndexWatched {
    const void *name; /* the caller's name of the question; 1 to INDEX_MAX_WATCHED_NAME bytes */
    size_t name_length;
    const IndexWatchedTerm *terms; /* distinct */
    size_t term_count;
    const IndexWatchedDocument *documents; /* the documents of this index that the answer uses; distinct */
    size_t document_count;
    uint64_t sentences;        /* the sentences of the whole corpus; determine the terms' idf */
    uint64_t fewest, most;     /* the bounds for the number of sentences in this index */
    double score;              /* a new sentence with at least this score may change the answer */
    uint64_t since;            /* index_next_id() at the time of the ranking */
    uint64_t token;            /* identifies this call of index_watch_add(); never 0 */
    int64_t expires;           /* in milliseconds of the caller's clock */
    const IndexVector *vector; /* NULL, or the vector of the ranking; with a vector, `score` is IndexHit.total */
    const void *filter;        /* a valid filter: only sentences of admitted documents concern the question */
    size_t filter_length;      /* 0: no filter */
} IndexWatched;

/* The callback that reports a dropped question: its name, and the count 1. If a call drops more than INDEX_TOLD_BY_NAME
 * questions, there is one report for all of them: no name (NULL, 0), and their count. Then any question may have been
 * dropped. Expired questions and index_watch_free() are not reported. The callback must not call functions with this
 * IndexWatch. */
enum { INDEX_TOLD_BY_NAME = 500 };
typedef void (*IndexDropped)(void *context, const void *name, size_t length, size_t count);

IndexWatch *index_watch_new(IndexAllocator allocator, const uint64_t key[2], IndexDropped dropped);
void index_watch_free(IndexWatch *watch);
/* Watches a question. `now` is the time of the clock of `expires`. `context` is passed to the callback IndexDropped. If
 * `limit` questions with other names are already watched, drops the oldest question. Returns false, does not watch the
 * question and drops no other question, in these cases:
 * - The index has changed since the ranking, and the change may change the answer.
 * - The commit of an open document may change the answer.
 * - The terms of a long document are still being counted.
 * - The question has a vector, and the index has more than `scan_bytes` bytes of vectors of the same encoder.
 * The new question replaces a watched question of the same name. Clients may still cache answers of the replaced
 * question. So the new question also gets the conditions of the replaced question: a write that would have dropped the
 * replaced question drops the new question. The conditions cannot be joined if the two questions differ in terms,
 * filter or vector, or have more than INDEX_MAX_WATCHED_DOCUMENTS documents together. Then index_watch_add() drops and
 * reports the replaced question. */
bool index_watch_add(IndexWatch *watch, Index *index, const IndexWatched *question, size_t limit, int64_t now,
                     void *context);
/* Returns the token of a watched question. 0: no question with this name is watched, or the question has expired at the
 * time `now`. */
uint64_t index_watch_token(const IndexWatch *watch, const void *name, size_t length, int64_t now);

/* A document that is being added, or a document that gets other fields (then without sentences). The caller has checked
 * the id, the fields and the packed sentences. */
typedef struct IndexIncoming {
    const void *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
} IndexIncoming;

/* Removes the questions that have expired at the time `now`. */
void index_watch_expire(IndexWatch *watch, int64_t now);

/* Drops the questions whose answers new vectors may change. Call it after index_embed() if index_next_id() has grown.
 * Then call index_watch_settle(). */
void index_watch_embedded(IndexWatch *watch, Index *index, const void *id, size_t length);
/* Code that writes to an index must call these functions, so that the watch drops the right questions.
 * To replace only the fields of a document:
 * - index_watch_changing() before the change. It drops questions that were answered from the document, and questions
 *   whose filter accepts the document only with the new fields.
 * - index_watch_settle() after the change.
 * For every other write, the functions that apply:
 * - index_watch_removing() before the removal of a document.
 * - index_watch_adding() for new sentences before their commit, after index_packed_check() has accepted the sentences.
 * - index_watch_committing() before the commit of a document whose parts were added in earlier writes.
 * - index_watch_settle() at the end.
 *
 * index_watch_settle() reports the dropped questions. It also counts overdue terms, so that document frequencies are
 * exact while questions are watched. If many terms are overdue, index_watch_settle() stops after about 2 ms. Then
 * index_watch_in_review() returns true, and the caller must call index_watch_review() until index_watch_review()
 * returns false. A call of index_watch_review() continues the counting and compares frequencies with their bounds, for
 * about `budget` units. Before the counting has ended, rankings and watched questions use the earlier frequencies. */
void index_watch_removing(IndexWatch *watch, const Index *index, const void *id, size_t length);
void index_watch_changing(IndexWatch *watch, Index *index, const IndexIncoming *document);
void index_watch_adding(IndexWatch *watch, Index *index, const IndexIncoming *document);
void index_watch_committing(IndexWatch *watch, const IndexPending *pending);
void index_watch_settle(IndexWatch *watch, Index *index, void *context);
bool index_watch_in_review(const IndexWatch *watch);
bool index_watch_review(IndexWatch *watch, Index *index, int64_t budget, void *context);

/* Drops all questions. */
void index_watch_clear(IndexWatch *watch, void *context);

/* If a call drops many questions or questions expire, their memory is freed later. A call of index_watch_free_left()
 * frees some of this memory, for about `budget` units, and returns true if more is left. index_watch_memory() counts
 * the memory of these questions; index_watch_count() does not count the questions. */
bool index_watch_has_left(const IndexWatch *watch);
bool index_watch_free_left(IndexWatch *watch, int64_t budget);

/* The number of watched questions. */
size_t index_watch_count(const IndexWatch *watch);
size_t index_watch_memory(const IndexWatch *watch);

/* ---- Saving and loading ---- */

/* The callback of index_save() that writes `length` bytes, at most INDEX_CHUNK. Returns false if saving must stop. */
enum { INDEX_CHUNK = 65536 };
typedef bool (*IndexWrite)(void *context, const void *bytes, size_t length);
/* The callback of index_load() that reads up to `length` bytes, at most INDEX_CHUNK. Returns their number; 0: the end,
 * or a failure. */
typedef size_t (*IndexRead)(void *context, void *bytes, size_t length);

IndexStatus index_save(const Index *index, IndexWrite write, void *context);
/* Returns a new index. NULL: the payload is damaged, or more bytes follow it. */
Index *index_load(IndexAllocator allocator, const uint64_t key[2], IndexRead read, void *context);

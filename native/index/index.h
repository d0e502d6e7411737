/* An inverted index of one partition's sentences, in memory. It takes changes between questions, ranks exactly and
 * cleans itself in steps.
 *
 * It knows nothing of the server: the caller gives the allocator. One thread at a time may use it. It reads no clock
 * and no random number, so the same operations give the same index on a primary and its replicas.
 *
 * What is in it
 * A sentence has an id of 48 bits. Ids ascend and are never reused (they last 350 years at 25,000 sentences a second).
 * index_begin() takes one id for the document itself, its place in the order of documents; index_add() takes one for
 * each sentence. So every list of postings grows at its end only, even while several documents are open. The ids that a
 * document got at once are a run, and an array of runs says which document a sentence belongs to (runs.c). An id in no
 * run is dead.
 *   - dictionary.c: a term has a number and an entry of 20 bytes. The entry says where the term's bytes are and how
 * many live sentences hold it, and has its postings while they fit 11 bytes (1 to 3 of them).
 *   - postings.c: more postings go into one buffer of varints; from 128 on into blocks, and a buffer for the rest.
 *   - blocks.c: a block has 128 differences of one width in bits and 128 codes. The list's directory has the last id
 * and the best code of each block.
 *   - documents.c: a document has its id, fields, counts and a forward list: the numbers of its terms, and in how many
 * of its sentences each is.
 *   - table.c: extendible hash tables find terms and documents.
 *
 * What is exact, what is quantised
 * A weight is BM25's without idf, in 8 bits (codes.c: at most 0.94 % off from 0.02 upwards). It has no more bits,
 * because the code is already half of a posting. Everything after that is exact: the ranking is the true top k under
 * the quantised weights, edges included, not that of a heuristic. Ties go to the lower id. A score is a sum of doubles
 * in the order of the query's terms; sqrt(w) * sqrt(idf) stands for sqrt(w * idf). The counts of sentences and terms
 * and the visibility of a document are exact at once, and all or nothing: a query looks at the document's state, one
 * word, that commit and remove change. Document frequencies are exact at once, too, as long as the documents committed
 * and removed lately have less than WORK_PER_CALL (4,096) entries in their forward lists: begin, commit, abort and
 * remove each work off that many. A larger document's frequencies follow with these calls and index_maintain();
 * meanwhile they lag by that document, and idf copes (it takes N for a df above N).
 *
 * What a step may cost
 * No step rebuilds anything as a whole. A hash table splits one segment (900 items). Arrays grow by chunks and copy
 * only the pointers to these (8 bytes for 1,024 terms, 24 for 256 runs, 16 for a block of 128 postings of one list). A
 * removal writes a state and counts 4,096 terms out. index_maintain() decodes as many postings as its budget says, 2
 * blocks at least. Queries skip dead postings until an eighth of all are dead; then a sweep through the dictionary
 * drops them, joins what is left to full blocks and frees terms that no document has any more. These calls work in
 * proportion to their input or to the whole index: add, commit (copies the forward list, about 2 bytes a distinct
 * term), rank, save, load, digest. Whoever must not wait for a document as a whole adds it in parts (open.c): a new
 * term takes 0.2 to 0.5 us, a known one 0.1, and nothing that was added before is touched again.
 *
 * Forward lists are the price of removal: about 2 bytes for each distinct term of a document. They take least in long
 * documents, and most in documents of one sentence or when each call of index_add() adds one sentence.
 *
 * Rejected
 *   - Finding out the dead sentences for df when a question comes: this needs no forward lists, but each question pays
 * for each removal since the last sweep, and sweeps must be frequent.
 *   - Taking a removed document's terms from the caller: a wrong list would corrupt frequencies for ever.
 *   - Lengths by sentence and frequencies by posting instead of codes: this saves 5 bytes a sentence and the
 * quantisation, but costs one more cache miss for each scored posting, and needs an array by id that must be compacted
 * when ids die.
 *   - Merged segments, as Lucene has: merges are either long or a machinery of their own, and a removal costs a bitmap
 * and stale frequencies. Here ids only grow, so appending in place is possible.
 *   - Ids of 32 bits, renumbered now and then: this saves 4 bytes for a block and a document, but at 1,000 sentences a
 * second they last 50 days, and only a second index would make renumbering in steps possible.
 *   - A block size of 64 or 256: it costs more directory, or more decoding for a look-up. */
#ifndef QA_INDEX_H
#define QA_INDEX_H

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
    INDEX_MAX_OPEN = 16,             /* documents that index_make_room() leaves open, with the one that comes */
};

typedef enum IndexStatus {
    INDEX_OK,
    INDEX_INVALID, /* an argument is out of its range */
    INDEX_EXISTS,  /* a live document has this id */
    INDEX_MISSING, /* no live document has this id */
    INDEX_FULL,    /* ids, numbers or sizes are used up */
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

/* The key makes the hash tables unpredictable; no result depends on it. */
Index *index_new(IndexAllocator allocator, const uint64_t key[2]);
/* Frees open documents, too: their handles become invalid. */
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

/* Opens a document. It takes its place in the order of documents now; searches find it once it is committed. Several
 * may be open, even of the same id. fields.c has the format of `fields`; NULL, 0 means none. */
IndexStatus index_begin(Index *index, const void *id, size_t id_length, const void *fields, size_t fields_length,
                        IndexPending **pending);
/* Appends sentences. After a refused call the caller can only abort the document. */
IndexStatus index_add(IndexPending *pending, const IndexSentence *sentences, size_t count);

/* What index_packed_check() finds out. */
typedef struct IndexPacked {
    size_t sentences;
    uint32_t most_terms; /* distinct ones of a sentence */
    const char *problem; /* of bytes that are not valid, at `offset` */
    size_t offset;
} IndexPacked;

/* Checks sentences in the form that sentences.c describes: false when they are not valid. */
bool index_packed_check(const void *bytes, size_t length, IndexPacked *packed);
/* Appends sentences that index_packed_check() found valid. */
IndexStatus index_add_packed(IndexPending *pending, const void *bytes, size_t length, const IndexPacked *packed);
/* Whether index_begin() takes these fields. */
bool index_fields_valid(const void *bytes, size_t length);

/* After INDEX_EXISTS the document is still open: remove the other and commit again. */
IndexStatus index_commit(IndexPending *pending);
void index_abort(IndexPending *pending);
IndexStatus index_remove(Index *index, const void *id, size_t length);

/* ---- Documents that come in parts (open.c) ---- */

typedef struct IndexOpen {
    const void *id, *fields; /* valid until the index is changed */
    size_t id_length, fields_length;
    uint32_t sentences;
    uint64_t place; /* the document's own id, by which it is known while it is open */
} IndexOpen;

/* The document stays open while the index is used: to commit it takes an id, which tells rankings before from those
 * after. A document that is open in a saved index is such a one. */
void index_keep_open(IndexPending *pending);
/* NULL: none is open at that place. */
IndexPending *index_open_at(const Index *index, uint64_t place);
IndexOpen index_open(const IndexPending *pending);
/* Aborts what is open under the id; false when nothing is. */
bool index_abort_id(Index *index, const void *id, size_t length);
/* Aborts those that were begun first, until another one may be begun. */
void index_make_room(Index *index);

/* Cleans for about `budget` units of at most some 20 ns each; true when work is left. */
bool index_maintain(Index *index, int64_t budget);

/* ---- Asking ---- */

/* Compiles a filter in filter.c's format; NULL when it is not valid. The result does not refer to `bytes`. */
IndexFilter *index_filter_new(Index *index, const void *bytes, size_t length);
void index_filter_free(Index *index, IndexFilter *filter);

typedef struct IndexTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency; /* document frequency for its weight, when the query is global */
} IndexTerm;

typedef struct IndexQuery {
    const IndexTerm *terms; /* distinct */
    size_t count;
    size_t k;
    bool global;               /* weigh by `sentences` and the terms' frequencies instead of this index's own */
    uint64_t sentences;        /* of the whole corpus */
    const IndexFilter *filter; /* NULL: none */
    uint64_t since;            /* only sentences whose ids are not below it */
    bool open;                 /* only sentences of documents that are still open, instead of those that are found */
} IndexQuery;

typedef struct IndexHit {
    const void *document; /* its id; valid until the index is changed */
    uint32_t document_length;
    uint32_t sentence;
    double score;
    uint64_t place; /* the document's own id: another version of the document has another one */
} IndexHit;

/* The caller provides the arrays: k hits, k rows of a weight for each term of the query, a frequency for each term. */
typedef struct IndexRanking {
    IndexHit *hits;
    double *weights;
    uint64_t *frequencies; /* of live sentences in this index; a filter does not change them */
    size_t count;
    uint64_t sentences, terms;
} IndexRanking;

IndexStatus index_rank(Index *index, const IndexQuery *query, IndexRanking *ranking);
/* The id that comes next: all that is in the index now has ids below it. */
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

/* Lists documents in the order of index_begin from *cursor on, which is 0 at first and again at the end, and moves it
 * on. Returns at most `count` that the filter (NULL: all) admits, fewer when it has looked at `steps` runs. A listing
 * returns a document that stays in the index exactly once; a cursor stays valid for ever, even across index_save(). */
size_t index_list(const Index *index, uint64_t *cursor, const IndexFilter *filter, size_t steps,
                  IndexDocument *documents, size_t count);

typedef struct IndexCounts {
    uint64_t documents, sentences, terms; /* live; terms with repetitions */
    uint64_t distinct_terms;
    uint64_t postings, dead_postings;
    uint64_t open_documents;
    size_t bytes;             /* allocated and not freed */
    size_t document_id_bytes; /* of these, for ids */
} IndexCounts;

IndexCounts index_counts(const Index *index);
size_t index_memory(const Index *index);

/* A digest of live documents, their fields, order, sentences and postings; it reads everything. */
uint64_t index_digest(const Index *index);

/* The weight of a code; see codes.c. */
double index_code_weight(uint8_t code);

/* ---- Watched questions (watch.c) ---- */

/* Questions whose answers somebody keeps, for one index or for what takes its place under its key. A question is
 * dropped by the first write that may change its answer; until then the ranking that it was answered from stands. */
typedef struct IndexWatch IndexWatch;

typedef struct IndexWatchedTerm {
    const void *bytes;
    size_t length;
    uint64_t frequency;    /* what it was weighed by */
    uint64_t fewest, most; /* sentences of this index that may hold it */
} IndexWatchedTerm;

typedef struct IndexWatchedDocument {
    const void *id;
    size_t length;
    uint64_t place; /* as the ranking gave it */
} IndexWatchedDocument;

enum { INDEX_MAX_WATCHED_NAME = 256, INDEX_MAX_WATCHED_DOCUMENTS = 1000 };

typedef struct IndexWatched {
    const void *name; /* of the answer; 1 to INDEX_MAX_WATCHED_NAME bytes */
    size_t name_length;
    const IndexWatchedTerm *terms; /* distinct */
    size_t term_count;
    const IndexWatchedDocument *documents; /* those of this index from which the answer was made; distinct */
    size_t document_count;
    uint64_t sentences;    /* of the whole corpus, to weigh by */
    uint64_t fewest, most; /* sentences that this index may have */
    double score;          /* a new sentence that reaches it may change the answer */
    uint64_t since;        /* index_next_id() of when it was ranked */
    uint64_t token;        /* of this keeping, never 0 */
    int64_t expires;       /* in milliseconds, of the caller's clock */
    const void *filter;    /* a valid one: only sentences of documents that it admits concern the question */
    size_t filter_length;  /* 0: none */
} IndexWatched;

/* Called for each question that is dropped, with 1 as the count, but not by index_watch_free(). When a call drops more
 * than INDEX_TOLD_BY_NAME, it is called once instead, without a name (NULL, 0): any question may be among them. It must
 * not call the watch. */
enum { INDEX_TOLD_BY_NAME = 500 };
typedef void (*IndexDropped)(void *context, const void *name, size_t length, size_t count);

IndexWatch *index_watch_new(IndexAllocator allocator, const uint64_t key[2], IndexDropped dropped);
void index_watch_free(IndexWatch *watch);
/* Watches a question, with `limit` questions at most: the oldest are dropped. False, and nothing is done, when the
 * index has changed since the ranking in a way that may change the answer, or will when a document is committed that is
 * open, or while the terms of a long document are still being counted. A question of the same name that is watched
 * already is replaced; what would have dropped it drops the new one, so that older answers of this name go, too. If it
 * has other terms or another filter, it is dropped now. */
bool index_watch_add(IndexWatch *watch, Index *index, const IndexWatched *question, size_t limit, int64_t now,
                     void *context);
/* The token of a question that is watched, or 0. */
uint64_t index_watch_token(const IndexWatch *watch, const void *name, size_t length, int64_t now);

/* A document that is added: valid id, fields and packed sentences. */
typedef struct IndexIncoming {
    const void *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
} IndexIncoming;

/* Forgets those whose time is up. */
void index_watch_expire(IndexWatch *watch, int64_t now);

/* What a writer does, in this order: before a document is removed, the first; for valid sentences that are added, the
 * second, before their commit; before the commit of a document whose parts came in earlier writes, the third; when all
 * is done, the fourth, which tells what the others have dropped. It counts what is still to be counted, so that
 * frequencies are exact while questions are watched, unless it is more than some milliseconds' work. Then
 * index_watch_review() must be called until it returns false: it counts on and compares all frequencies, for about
 * `budget` units at a time. Until then questions stay watched by frequencies that rankings do not weigh by yet either.
 */
void index_watch_removing(IndexWatch *watch, const Index *index, const void *id, size_t length);
void index_watch_adding(IndexWatch *watch, Index *index, const IndexIncoming *document);
void index_watch_committing(IndexWatch *watch, const IndexPending *pending);
void index_watch_settle(IndexWatch *watch, Index *index, void *context);
bool index_watch_in_review(const IndexWatch *watch);
bool index_watch_review(IndexWatch *watch, Index *index, int64_t budget, void *context);

/* Drops all. */
void index_watch_clear(IndexWatch *watch, void *context);

/* Questions that are gone may leave memory behind when they were many: index_watch_free_left() frees it, for about
 * `budget` units at a time, and returns whether there is more. Nothing but index_watch_memory() shows it. */
bool index_watch_has_left(const IndexWatch *watch);
bool index_watch_free_left(IndexWatch *watch, int64_t budget);

/* How many are watched. */
size_t index_watch_count(const IndexWatch *watch);
size_t index_watch_memory(const IndexWatch *watch);

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

/* What the files of this room share. index.h says what the parts are for. */
#ifndef QA_INDEX_INTERNAL_H
#define QA_INDEX_INTERNAL_H

#include "index/index.h"

#include <string.h>

enum {
    BLOCK_POSTINGS = 128,
    CHUNK_ITEMS = 1024,
    NO_ITEM = 0xffffffff, /* of term and document numbers */
    WORK_PER_CALL = 4096, /* units of overdue work that a begin, commit, abort or remove also does */
};

#define MAX_ID ((UINT64_C(1) << 48) - 1)
#define NO_ID UINT64_MAX

/* ---- memory.c: counts every byte ---- */

void *memory_alloc(Index *index, size_t bytes);
void *memory_zeroed(Index *index, size_t bytes);
/* The sizes are those of the allocation. */
void memory_free(Index *index, void *pointer, size_t bytes);
void *memory_resize(Index *index, void *pointer, size_t bytes, size_t wanted);

/* An array in chunks: growing it copies at most one chunk and the pointers to all chunks. */
typedef struct Chunks {
    uint8_t **chunks;
    uint32_t capacity; /* of `chunks` */
    uint32_t items;
    uint32_t first_capacity; /* the first chunk grows by doubling: a small index stays small */
    uint32_t item_bytes;
} Chunks;

/* Returns the number of a new item, whose bytes are not set; NO_ITEM when there are 2^32 - 1 already. */
uint32_t chunks_add(Index *index, Chunks *chunks);
void chunks_free(Index *index, Chunks *chunks);

static inline void *chunks_at(const Chunks *chunks, uint32_t item) {
    return chunks->chunks[item / CHUNK_ITEMS] + (size_t)(item % CHUNK_ITEMS) * chunks->item_bytes;
}

/* SipHash-1-3. */
uint64_t hash_bytes(const uint64_t key[2], const void *bytes, size_t length);

static inline uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ULL;
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ULL;
    return value ^ (value >> 32);
}

static inline unsigned varint_bytes(uint64_t value) {
    unsigned bytes = 1;
    for (; value >= 0x80; value >>= 7) bytes++;
    return bytes;
}

static inline uint8_t *varint_put(uint8_t *at, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

/* Only for bytes that varint_put wrote: it checks nothing. */
static inline const uint8_t *varint_get(const uint8_t *at, uint64_t *value) {
    uint64_t result = *at & 0x7f;
    for (unsigned shift = 7; *at++ & 0x80; shift += 7) result |= (uint64_t)(*at & 0x7f) << shift;
    *value = result;
    return at;
}

/* ---- codes.c ---- */

extern const uint32_t CODE_WEIGHTS[256]; /* in units of 2^-20 */
/* The same as doubles, and their roots; filled by codes_prepare(). */
extern double code_weight[256], code_root[256];
void codes_prepare(void);
uint8_t code_of(uint32_t frequency, uint32_t length);

/* ---- Scores: sum of weight * idf over the question's terms, plus the edges between them ---- */

static const double EDGES = 0.3 * 0.5;
static const double SAFETY = 1 + 1e-12;

double term_idf(double sentences, double frequency);

static inline double score_of(double sum, double roots) { return sum + EDGES * (roots * roots - sum); }

/* Of sums that were made in another order than a score's. */
static inline double bound(double sum, double roots) { return score_of(sum, roots) * SAFETY; }

/* ---- table.c: hash tables of item numbers ---- */

typedef struct Segment Segment;

typedef struct Table {
    Segment **directory;
    uint32_t depth; /* the directory has 2^depth entries */
    uint64_t (*hash)(const Index *index, uint32_t item);
    /* Asks for the memory that `hash` will read: first where the item says what it is, then that. */
    void (*fetch)(const Index *index, uint32_t item, bool first);
} Table;

typedef struct TableKey {
    const void *bytes;
    size_t length;
    uint64_t hash;
} TableKey;

typedef bool (*TableEqual)(const Index *index, uint32_t item, const TableKey *key);

void table_init(Index *index, Table *table, uint64_t (*hash)(const Index *, uint32_t),
                void (*fetch)(const Index *, uint32_t, bool));
void table_free(Index *index, Table *table);
uint32_t table_find(const Index *index, const Table *table, const TableKey *key, TableEqual equal);
/* The item must not be in the table. */
void table_insert(Index *index, Table *table, uint64_t hash, uint32_t item);
/* The item must be in the table. Returns how many others were hashed to close the gap: in a full segment they are some
 * thirty. */
uint32_t table_remove(Index *index, Table *table, uint64_t hash, uint32_t item);

/* ---- dictionary.c: terms and their numbers ---- */

enum { FORM_TAIL = 253, FORM_LIST = 254, FORM_FREE = 255, INLINE_BYTES = 11 };

typedef struct Entry {
    uint32_t text; /* place of its bytes in the arena, in units of 4; in a free entry the next free one */
    uint32_t df;   /* live sentences that hold the term */
    uint8_t form;  /* number of postings in `payload`, or one of the forms */
    uint8_t payload[INLINE_BYTES];
} Entry;

enum { TEXT_CHUNK = 65536, TEXT_CLASSES = 66 };

typedef struct Texts {
    uint8_t **chunks;
    uint32_t capacity, chunk_count;
    uint32_t first_bytes; /* size of the first chunk, which grows by doubling */
    uint32_t used;        /* bytes of the last chunk */
    uint32_t free[TEXT_CLASSES];
} Texts;

static inline Entry *entry_at(const Index *index, uint32_t term);
uint32_t dictionary_find(const Index *index, const void *bytes, size_t length);
/* The number of a known or a new term; NO_ITEM when no number is left. */
uint32_t dictionary_add(Index *index, const void *bytes, size_t length, bool *is_new);
/* Returns how many terms were hashed. */
uint32_t dictionary_remove(Index *index, uint32_t term);
const uint8_t *dictionary_text(const Index *index, const Entry *entry, size_t *length);
uint64_t dictionary_hash(const Index *index, uint32_t term);
void dictionary_fetch(const Index *index, uint32_t term, bool first);
void dictionary_free(Index *index);

/* ---- blocks.c and postings.c ---- */

typedef struct Block {
    uint64_t last : 48; /* sentence id */
    uint64_t max : 8;
    uint64_t count_minus_1 : 8;
    uint8_t *data;
} Block;

typedef struct Decoded {
    uint64_t base; /* id of the first posting */
    uint32_t count;
    uint32_t offsets[BLOCK_POSTINGS + 4]; /* ids less base, ascending; room for whole rows */
    uint8_t codes[BLOCK_POSTINGS];
} Decoded;

/* The postings must be 1 to BLOCK_POSTINGS, their ids ascending and less than 2^32 apart. */
Block block_new(Index *index, const uint64_t *ids, const uint8_t *codes, unsigned count);
void block_free(Index *index, Block *block);
void block_decode(const Block *block, Decoded *out);

typedef struct Tail {
    uint64_t last : 48;
    uint64_t max : 8;
    uint64_t count : 8;
    uint16_t used, capacity;
    uint8_t bytes[]; /* for each posting the id less the one before it as a varint, then the code */
} Tail;

typedef struct List {
    Block *blocks;
    Tail *tail; /* NULL: empty */
    uint32_t block_count, capacity;
    uint32_t postings; /* tail included */
    uint8_t max;
} List;

/* A term's postings for reading: the packed blocks, then those not packed as one more block. */
typedef struct View {
    const Block *blocks;
    const uint8_t *tail;
    uint64_t tail_last;
    uint32_t block_count, total; /* without and with the tail */
    uint32_t tail_count;
    uint8_t tail_max, max;
} View;

View postings_view(const Entry *entry);
void view_decode(const View *view, uint32_t block, Decoded *out);

static inline uint64_t view_last(const View *view, uint32_t block) {
    return block < view->block_count ? view->blocks[block].last : view->tail_last;
}

static inline uint8_t view_max(const View *view, uint32_t block) {
    return block < view->block_count ? view->blocks[block].max : view->tail_max;
}

uint32_t postings_count(const Entry *entry);
/* The id must not be less than that of the last posting; does nothing and returns false when it is the same. */
bool postings_append(Index *index, Entry *entry, uint64_t id, uint8_t code);
void postings_free(Index *index, Entry *entry);
/* Drops postings of dead documents from block *block on, until the budget is spent; true at the end of the list. */
bool postings_purge(Index *index, Entry *entry, uint32_t *block, int64_t *budget);

/* ---- runs.c: which document holds a sentence id ---- */

typedef struct Run {
    uint32_t first; /* less the chunk's base */
    uint32_t count;
    uint32_t sentence; /* of the first id: 0 is the document's own id, 1 its first sentence */
    uint32_t document;
} Run;

typedef struct RunChunk {
    uint64_t base;
    Run *runs;
    uint16_t count, capacity;
} RunChunk;

typedef struct Runs {
    RunChunk *chunks;
    uint32_t count, capacity;
} Runs;

/* A range of ids that belong to one document, or to none. */
typedef struct Place {
    uint64_t first, end;
    uint32_t document; /* NO_ITEM: none */
    uint32_t sentence; /* of `first` */
} Place;

Place runs_find(const Index *index, uint64_t id);
/* The first run at or after an id; document is NO_ITEM when there is none. */
Place runs_from(const Index *index, uint64_t id);
/* Adds ids at the end: to the last run if they continue it. */
void runs_append(Index *index, uint64_t first, uint32_t count, uint32_t document, uint32_t sentence);
/* Removes the run that holds the id. */
void runs_remove(Index *index, uint64_t id);
void runs_free(Index *index);

/* ---- documents.c ---- */

enum { DOCUMENT_OPEN, DOCUMENT_LIVE, DOCUMENT_DEAD };

typedef struct Document {
    uint64_t head : 48; /* its own id, before those of its sentences; its place in the order */
    uint64_t state : 16;
    uint64_t span; /* from head to the id of its last sentence */
    uint32_t sentences;
    uint32_t id_bytes, field_bytes, forward_bytes;
    uint64_t terms;
    uint8_t bytes[]; /* id, fields, forward list */
} Document;

static inline const uint8_t *document_fields(const Document *document) { return document->bytes + document->id_bytes; }

struct IndexPending {
    Index *index;
    IndexPending *next, *previous;
    Document *document;
    uint32_t number;
    bool refused, in_parts;
    uint64_t postings;
    uint8_t *forward;
    uint32_t forward_used, forward_capacity;
};

/* Work on the frequencies and runs of one document that may take more than one step. */
typedef struct Work {
    struct Work *next;
    uint32_t document;
    int8_t sign;       /* +1 counts its terms in, -1 out; 0: they never counted */
    bool forward_done; /* then its runs are removed, unless sign is +1 */
    uint32_t at;       /* in the forward list */
    int64_t term;      /* the last one counted */
    uint64_t run;      /* id to continue from */
} Work;

Document *document_at(const Index *index, uint32_t number);
uint32_t document_find(const Index *index, const void *id, size_t length);
/* Does overdue work and subtracts it from the budget. */
void documents_work(Index *index, int64_t *budget);
void documents_free(Index *index);
uint64_t documents_hash(const Index *index, uint32_t number);
void documents_fetch(const Index *index, uint32_t number, bool first);
size_t document_bytes(const Document *document);
/* For load.c: a live document whose sentences and postings come later. */
uint32_t documents_restore(Index *index, const void *id, size_t id_length, const void *fields, size_t field_length);
/* For load.c: one that is open. */
IndexPending *documents_reopen(Index *index, const void *id, size_t id_length, const void *fields, size_t field_length);
void documents_replace(Index *index, uint32_t number, Document *document);
/* Appends a term to a forward list: `*last` is the term before it, -1 at first. At most FORWARD_BYTES are written. */
enum { FORWARD_BYTES = 12 };
uint8_t *forward_put(uint8_t *at, int64_t *last, uint32_t term, uint32_t count);
/* Reads a term and the number of its sentences; *term is the one before it, -1 at first. */
const uint8_t *forward_get(const uint8_t *at, int64_t *term, uint64_t *count);
const uint8_t *document_forward(const Document *document);

/* ---- open.c ---- */

/* The lowest place of an open document; NO_ID when none is open. */
uint64_t open_first(const Index *index);

/* ---- sentences.c ---- */

/* Reads a number of three bytes at most; NULL when there is none. */
const uint8_t *packed_number(const uint8_t *at, const uint8_t *end, uint32_t *number);

/* ---- fields.c and filter.c ---- */

/* Checks one value at `at`; NULL when it is damaged, else where it ends. */
const uint8_t *value_end(const uint8_t *at, const uint8_t *end);
bool fields_valid(const uint8_t *bytes, size_t length);
/* The values of a field: how many, and where they start. */
const uint8_t *fields_find(const uint8_t *fields, size_t length, const uint8_t *name, uint8_t name_length,
                           unsigned *values);
/* Whether the filter admits a document. */
bool filter_matches(const IndexFilter *filter, const Document *document);
/* The numbers of the documents to which the filter is confined by their ids, in no certain order. Returns their count,
 * or -1 when it is not confined. The caller frees *documents with memory_free and *bytes. */
int64_t filter_documents(Index *index, const IndexFilter *filter, uint32_t **documents, size_t *bytes);

/* ---- the index ---- */

struct Index {
    IndexAllocator allocator;
    uint64_t key[2];
    size_t memory, id_memory;

    Table term_table;
    Chunks entries;
    uint32_t free_entry;
    Texts texts;

    Table document_table;
    Chunks documents; /* of Document * */
    uint32_t free_document;
    Runs runs;
    uint64_t next_id;
    uint64_t committed_late; /* rankings of before the last commit of a document in parts have a lower next id */
    IndexPending *pending;
    Work *work, **work_end;

    uint64_t document_count, sentences, terms; /* live */
    uint64_t term_count;                       /* in the dictionary */
    uint64_t postings, dead_postings;          /* in the lists; of documents that are gone */

    bool sweeping;
    uint32_t sweep_term, sweep_block;
};

static inline Entry *entry_at(const Index *index, uint32_t term) { return chunks_at(&index->entries, term); }

/* Remembers the last range, so that ascending ids cost one comparison each. */
static inline bool id_is_live(const Index *index, uint64_t id, Place *place) {
    if (id < place->first || id >= place->end) *place = runs_find(index, id);
    if (place->document == NO_ITEM) return false;
    /* Only open documents and those with overdue work are in the runs without being live: mostly there are none. */
    return (!index->pending && !index->work) || document_at(index, place->document)->state == DOCUMENT_LIVE;
}

/* Whether the id belongs to a document that is live or open. */
static inline bool id_is_kept(const Index *index, uint64_t id, Place *place) {
    if (id < place->first || id >= place->end) *place = runs_find(index, id);
    if (place->document == NO_ITEM) return false;
    return !index->work || document_at(index, place->document)->state != DOCUMENT_DEAD;
}

#endif

/* The data structures of the index. index.h explains their purpose and defines the words: run, posting, code, place,
 * passage, live, open, dead. The other headers of this folder declare the functions that work on these structures, one
 * header for each file. */
#pragma once

#include "index/index.h"

#include <string.h>

enum {
    BLOCK_POSTINGS = 128,
    CHUNK_ITEMS = 1024,
    NO_ITEM = 0xffffffff, /* a number that means: no term, or no document */
    WORK_PER_CALL = 4096, /* the most units of overdue work that a call of index_begin(), index_commit(),
                           * index_abort() or index_remove() does */
};

#define MAX_ID ((UINT64_C(1) << 48) - 1)
#define NO_ID UINT64_MAX

/* An array in chunks. Growth copies at most one chunk and the pointers to all chunks. */
typedef struct Chunks {
    uint8_t **chunks;
    uint32_t capacity;
    uint32_t items;
    uint32_t first_capacity; /* items of the first chunk, which grows by doubling, to save memory in a small index */
    uint32_t item_bytes;
} Chunks;

static inline void *chunks_at(const Chunks *chunks, uint32_t item) {
    return chunks->chunks[item / CHUNK_ITEMS] + (size_t)(item % CHUNK_ITEMS) * chunks->item_bytes;
}

/* A part of a hash table (table.c). */
typedef struct Segment Segment;

/* A hash table. Its items are the numbers of terms, of documents or of fields' names. */
typedef struct Table {
    Segment **directory;
    uint32_t depth; /* the directory has 2^depth entries */
    uint64_t (*hash)(const Index *index, uint32_t item);
    /* Prefetches the memory that `hash` reads. `first` true: the structure of the item, which has a pointer to the
     * item's bytes. `first` false: the bytes. */
    void (*fetch)(const Index *index, uint32_t item, bool first);
} Table;

/* ---- Terms ---- */

enum { FORM_TAIL = 253, FORM_LIST = 254, FORM_FREE = 255, INLINE_BYTES = 11 };

/* A term. */
typedef struct Entry {
    uint32_t text; /* the position of the term's bytes in Texts, in units of 4 bytes; in a free entry the number of the
                    * next free entry */
    uint32_t df;   /* document frequency: live sentences that contain the term */
    uint8_t form;  /* the number of postings in `payload`, or FORM_TAIL, FORM_LIST, FORM_FREE */
    uint8_t payload[INLINE_BYTES]; /* the postings themselves, or a pointer to their Tail or List */
} Entry;

enum { TEXT_CHUNK = 65536, TEXT_CLASSES = 66 };

/* The bytes of all terms. */
typedef struct Texts {
    uint8_t **chunks;
    uint32_t capacity, chunk_count;
    uint32_t first_bytes;        /* the size of the first chunk, which grows by doubling */
    uint32_t used;               /* bytes of the last chunk */
    uint32_t free[TEXT_CLASSES]; /* by size class: the position of the first removed term's space, plus 1; 0: no space
                                  * is free */
} Texts;

/* ---- Postings ---- */

/* 1 to BLOCK_POSTINGS packed postings (blocks.c). */
typedef struct Block {
    uint64_t last : 48; /* the id of the last posting */
    uint64_t max : 8;   /* the highest code */
    uint64_t count_minus_1 : 8;
    uint8_t *data;
} Block;

/* The postings of a block or tail, unpacked. */
typedef struct Decoded {
    uint64_t base; /* id of the first posting */
    uint32_t count;
    uint32_t offsets[BLOCK_POSTINGS + 4]; /* ids minus the base, ascending; 4 more items, so that loops can write whole
                                           * groups of four */
    uint8_t codes[BLOCK_POSTINGS];
} Decoded;

/* The buffer of a term for postings that do not fill a block yet. */
typedef struct Tail {
    uint64_t last : 48;
    uint64_t max : 8;
    uint64_t count : 8;
    uint16_t used, capacity;
    uint8_t bytes[]; /* for each posting the difference from the previous id as a varint, then the code */
} Tail;

/* All postings of a term that has blocks. */
typedef struct List {
    Block *blocks;
    Tail *tail; /* NULL: empty */
    uint32_t block_count, capacity;
    uint32_t postings; /* the number of postings, including the tail */
    uint8_t max;
} List;

/* The postings of a term for reading, in any form: the packed blocks, and then the tail as one more block. Postings in
 * the entry itself are the tail. */
typedef struct View {
    const Block *blocks;
    const uint8_t *tail;
    uint64_t tail_last;
    uint32_t block_count, total; /* the number of blocks without the tail, and with the tail */
    uint32_t tail_count;
    uint8_t tail_max, max;
} View;

/* ---- Sentence ids ---- */

/* A range of consecutive ids of one document. */
typedef struct Run {
    uint32_t first; /* the first id minus the base of the chunk */
    uint32_t count;
    uint32_t sentence; /* what the first id belongs to: 0 is the document itself, 1 its first sentence */
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

/* ---- Vectors ---- */

enum { VECTOR_STEP = 64 }; /* a stored vector is padded with zeros to a multiple of this number of bytes */

/* Consecutive sentences of a document that share one vector. */
typedef struct Passage {
    uint32_t first, count;
    float scale;
} Passage;

/* The vectors of a live document: a list of parts in the order of their arrival (vectors.c). Only the first part uses
 * `last`, `total`, `stored` and `encoder`. */
typedef struct Vectors {
    struct Vectors *next, *last;
    uint32_t count;         /* passages of this part */
    uint32_t total, stored; /* all passages of the document, and the passages that are stored in its parts */
    uint32_t encoder;       /* an index into `encoders` of the index */
    Passage passages[];     /* `count` passages, then `count` vectors */
} Vectors;

/* An encoder. If no document has vectors of this encoder any more, a different encoder can reuse this entry of
 * `encoders`. */
typedef struct Encoder {
    uint8_t digest[INDEX_DIGEST];
    uint32_t dims;
    uint64_t documents, complete; /* documents with any vectors, and documents with complete vectors */
    uint64_t passages, bytes;
} Encoder;

enum { RECENT_EMBEDDED = 32 };

/* A change of a document's vectors that has changed the results of rankings. A ranking's next id is index_next_id() at
 * the time of the ranking. */
typedef struct Embedded {
    uint64_t id;   /* the id that this change used; if a ranking's next id is at or below `id`, the ranking is older */
    uint64_t head; /* the place of the document */
} Embedded;

/* ---- Documents ---- */

enum { DOCUMENT_OPEN, DOCUMENT_LIVE, DOCUMENT_DEAD };

typedef struct Document {
    uint64_t head : 48; /* the document's place: its own id, which is before the ids of its sentences */
    uint64_t state : 16;
    uint64_t span; /* the id of its last sentence, minus `head` */
    uint32_t sentences;
    uint32_t id_bytes, field_bytes, forward_bytes;
    uint64_t terms;   /* with repetitions */
    Vectors *vectors; /* NULL: no vectors */
    uint8_t bytes[];  /* id, fields, forward list (documents.c) */
} Document;

/* The data of an open document that a live document does not need. */
struct IndexPending {
    Index *index;
    IndexPending *next, *previous;
    Document *document;
    uint32_t number;
    bool refused, in_parts; /* `refused`: index_add() has failed, so the document can only be aborted; `in_parts`:
                             * index_keep_open() was called */
    uint64_t postings;
    uint8_t *forward;
    uint32_t forward_used, forward_capacity;
};

/* Queued work on the document frequencies and runs of one document. The work may take several steps. */
typedef struct Work {
    struct Work *next;
    uint32_t document;
    int8_t sign;       /* +1 (commit): adds the document's terms to the frequencies; -1 (removal): subtracts the terms;
                        * 0 (abort): leaves the frequencies, because the terms were never added */
    bool forward_done; /* the frequencies are done; if `sign` is not +1, the document's runs are removed next */
    uint32_t at;       /* position in the forward list */
    int64_t term;      /* the last term that was counted */
    uint64_t run;      /* the id from which the removal of runs continues */
} Work;

/* ---- Names of fields ---- */

enum { KIND_BOOLEAN, KIND_NUMBER, KIND_TEXT, KIND_TIME, VALUE_KINDS };

/* A field that live documents have. */
typedef struct FieldName {
    uint8_t *name;      /* u8 length, bytes; NULL: a free entry */
    uint64_t documents; /* live documents that have the field; in a free entry the number of the next free entry */
    uint64_t values[VALUE_KINDS];
} FieldName;

/* ---- The index ---- */

struct Index {
    IndexAllocator allocator;
    uint64_t key[2];
    size_t memory, id_memory;

    Table term_table;
    Chunks entries; /* of Entry */
    uint32_t free_entry;
    Texts texts;

    Table document_table;
    Chunks documents; /* of Document * */
    uint32_t free_document;
    Runs runs;
    uint64_t next_id;
    /* The next id after the last commit of a document in parts, or after the last change of fields. A ranking whose
     * next id is lower is older than this commit or change. */
    uint64_t committed_late;

    Table name_table;
    Chunks names; /* of FieldName */
    uint32_t free_name;
    IndexPending *pending;
    Work *work, **work_end;

    uint64_t document_count, sentences, terms; /* live */
    uint64_t filled_count;                     /* live documents with at least one sentence */
    uint64_t term_count;                       /* in the dictionary */
    uint64_t postings, dead_postings;          /* all postings; postings of removed documents */

    Encoder *encoders;
    uint32_t encoder_count;
    Embedded *embedded;      /* a ring of RECENT_EMBEDDED; NULL: no vectors have changed yet */
    uint64_t embedded_count; /* the number of all changes of vectors; the ring has the last of these changes */
    uint64_t embedded_from;  /* a ranking with a lower next id is older than changes that the ring has overwritten */

    bool sweeping;                    /* index_maintain() is removing dead postings from all terms (maintain.c) */
    uint32_t sweep_term, sweep_block; /* where the removal continues */
};

static inline Entry *entry_at(const Index *index, uint32_t term) { return chunks_at(&index->entries, term); }

static inline Document *document_at(const Index *index, uint32_t number) {
    return *(Document **)chunks_at(&index->documents, number);
}

static inline const uint8_t *document_fields(const Document *document) { return document->bytes + document->id_bytes; }

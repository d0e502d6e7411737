/* The data structures of the index. index.h explains their purpose. The other headers of this folder declare the
 * functions that work on them, one header for each file. */
#pragma once

#include "index/index.h"

#include <string.h>

enum {
    BLOCK_POSTINGS = 128,
    CHUNK_ITEMS = 1024,
    NO_ITEM = 0xffffffff, /* no term, no document */
    WORK_PER_CALL = 4096, /* units of overdue work in each begin, commit, abort and remove */
};

#define MAX_ID ((UINT64_C(1) << 48) - 1)
#define NO_ID UINT64_MAX

/* An array in chunks. Growth copies at most one chunk and the pointers to all chunks. */
typedef struct Chunks {
    uint8_t **chunks;
    uint32_t capacity;
    uint32_t items;
    uint32_t first_capacity; /* the first chunk grows by doubling, to save memory in a small index */
    uint32_t item_bytes;
} Chunks;

static inline void *chunks_at(const Chunks *chunks, uint32_t item) {
    return chunks->chunks[item / CHUNK_ITEMS] + (size_t)(item % CHUNK_ITEMS) * chunks->item_bytes;
}

/* A hash table of item numbers (table.c). */
typedef struct Segment Segment;

typedef struct Table {
    Segment **directory;
    uint32_t depth; /* the directory has 2^depth entries */
    uint64_t (*hash)(const Index *index, uint32_t item);
    /* Prefetches the memory that `hash` reads. With `first`, prefetches the item itself; otherwise its text. */
    void (*fetch)(const Index *index, uint32_t item, bool first);
} Table;

/* ---- Terms ---- */

enum { FORM_TAIL = 253, FORM_LIST = 254, FORM_FREE = 255, INLINE_BYTES = 11 };

/* A term. */
typedef struct Entry {
    uint32_t text; /* the position of its bytes in the texts, in units of 4 bytes; in a free entry the number of the
                    * next free entry */
    uint32_t df;   /* document frequency: live sentences that contain the term */
    uint8_t form;  /* the number of postings in `payload`, or FORM_TAIL, FORM_LIST, FORM_FREE */
    uint8_t payload[INLINE_BYTES];
} Entry;

enum { TEXT_CHUNK = 65536, TEXT_CLASSES = 66 };

/* The bytes of all terms. */
typedef struct Texts {
    uint8_t **chunks;
    uint32_t capacity, chunk_count;
    uint32_t first_bytes; /* the size of the first chunk, which grows by doubling */
    uint32_t used;        /* bytes of the last chunk */
    uint32_t free[TEXT_CLASSES];
} Texts;

/* ---- Postings ---- */

/* 1 to BLOCK_POSTINGS packed postings (blocks.c). */
typedef struct Block {
    uint64_t last : 48; /* sentence id */
    uint64_t max : 8;   /* the best code */
    uint64_t count_minus_1 : 8;
    uint8_t *data;
} Block;

typedef struct Decoded {
    uint64_t base; /* id of the first posting */
    uint32_t count;
    uint32_t offsets[BLOCK_POSTINGS + 4]; /* ids minus the base, ascending; 4 more items, so that loops can write whole
                                           * groups of four */
    uint8_t codes[BLOCK_POSTINGS];
} Decoded;

/* Postings that do not fill a block. */
typedef struct Tail {
    uint64_t last : 48;
    uint64_t max : 8;
    uint64_t count : 8;
    uint16_t used, capacity;
    uint8_t bytes[]; /* for each posting the difference from the previous id as a varint, then the code */
} Tail;

typedef struct List {
    Block *blocks;
    Tail *tail; /* NULL: empty */
    uint32_t block_count, capacity;
    uint32_t postings; /* tail included */
    uint8_t max;
} List;

/* The postings of a term for reading: the packed blocks, then the tail as one more block. */
typedef struct View {
    const Block *blocks;
    const uint8_t *tail;
    uint64_t tail_last;
    uint32_t block_count, total; /* the number of blocks without the tail, and with the tail */
    uint32_t tail_count;
    uint8_t tail_max, max;
} View;

/* ---- Sentence ids ---- */

/* Consecutive ids of one document. */
typedef struct Run {
    uint32_t first; /* minus the base of the chunk */
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

/* An encoder. If no document has vectors of this encoder, its entry can be used for a different encoder. */
typedef struct Encoder {
    uint8_t digest[INDEX_DIGEST];
    uint32_t dims;
    uint64_t documents, complete; /* documents with any vectors, and documents with complete vectors */
    uint64_t passages, bytes;
} Encoder;

enum { RECENT_EMBEDDED = 32 };

/* A document whose vectors have changed the results of rankings. */
typedef struct Embedded {
    uint64_t id; /* the id that this change used; rankings whose next id is not above it do not include the change */
    uint64_t head;
} Embedded;

/* ---- Documents ---- */

enum { DOCUMENT_OPEN, DOCUMENT_LIVE, DOCUMENT_DEAD };

typedef struct Document {
    uint64_t head : 48; /* its own id, which is before the ids of its sentences; also its place in the order of
                         * documents */
    uint64_t state : 16;
    uint64_t span; /* from `head` to the id of its last sentence */
    uint32_t sentences;
    uint32_t id_bytes, field_bytes, forward_bytes;
    uint64_t terms;
    Vectors *vectors; /* NULL: no vectors */
    uint8_t bytes[];  /* id, fields, forward list */
} Document;

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

/* Overdue work on the frequencies and runs of one document. The work may take several steps. */
typedef struct Work {
    struct Work *next;
    uint32_t document;
    int8_t sign;       /* +1 adds its terms to the frequencies, -1 subtracts them; 0: they were never added */
    bool forward_done; /* the frequencies are done; if `sign` is not +1, the removal of its runs follows */
    uint32_t at;       /* position in the forward list */
    int64_t term;      /* the last term that was counted */
    uint64_t run;      /* the id to continue from */
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
    /* A ranking with a lower next id does not include the last commit of a document in parts, or the last change of
     * fields. */
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
    uint64_t embedded_from;  /* a ranking with a lower next id does not include changes that the ring has overwritten */

    bool sweeping;
    uint32_t sweep_term, sweep_block;
};

static inline Entry *entry_at(const Index *index, uint32_t term) { return chunks_at(&index->entries, term); }

static inline Document *document_at(const Index *index, uint32_t number) {
    return *(Document **)chunks_at(&index->documents, number);
}

static inline const uint8_t *document_fields(const Document *document) { return document->bytes + document->id_bytes; }

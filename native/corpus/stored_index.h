/* The indexes behind keys: what the library in index/ makes of a partition's sentences, or the parts of a payload that
 * are to become one.
 *
 * Cleaning. An index is cleaned here, in steps of a millisecond at most from a timer that runs only while there is
 * something to clean, on primaries and on replicas. It is neither replicated nor done at the same moments on both,
 * and need not be: it changes neither what is found, nor in which order, nor the digest, nor what is saved. The one
 * thing that can be seen of it are frequencies that lag behind a document of more than 4,096 distinct terms (index.h)
 * until it has run; a ranking weighs by them a few milliseconds long. While the server has a child that saves, nothing
 * is cleaned: each page that is written then is copied.
 *
 * Threads. The server may free a value on a thread of its own, so the list of all of them has a lock; everything else
 * is the main thread's. The type has no callback `unlink` that could take a value off the list earlier: the server
 * calls it for a key that is renamed or moved, whose value lives on. */
#ifndef QA_STORED_INDEX_H
#define QA_STORED_INDEX_H

#include "index/index.h"
#include "server/module_api.h"

typedef struct Part {
    struct Part *next;
    size_t length; /* 1 to INDEX_CHUNK */
    uint8_t bytes[];
} Part;

typedef struct StoredIndex {
    Index *index;            /* NULL: not complete, parts of its payload have come */
    Part *parts, *last_part; /* none when it is complete */
    uint64_t part_bytes;
    uint64_t identity; /* what no other value of this process has, nor probably any of the one before; never 0 */
    struct StoredIndex *next, *previous;
    bool untidy;
} StoredIndex;

typedef struct StoredTotals {
    uint64_t indexes, documents, sentences, bytes;
} StoredTotals;

int stored_index_on_load(RedisModuleCtx *ctx);

/* A new value, which takes over the index; NULL: one that is not complete. */
StoredIndex *stored_index_new(Index *index);
/* From any thread. */
void stored_index_free(void *stored);

/* An index of our allocator: empty, or read. */
Index *stored_index_empty(void);
Index *stored_index_read(IndexRead read, void *context);

/* The allocator and the key of the hash tables, for what belongs to an index without being in it. */
IndexAllocator stored_index_allocator(void);
const uint64_t *stored_index_hash_key(void);

/* The index in which nothing is, for keys that are not there and for filters; never to be changed. */
Index *stored_index_none(void);

void stored_index_add_part(StoredIndex *stored, const void *bytes, size_t length);
void stored_index_drop_parts(StoredIndex *stored);
/* Makes the index of the parts; false, and nothing is done, when these are damaged or not all. */
bool stored_index_complete(StoredIndex *stored);

/* It was changed: cleans it when the server has time. */
void stored_index_changed(StoredIndex *stored);

size_t stored_index_memory(const StoredIndex *stored);
/* Of all complete ones. */
StoredTotals stored_index_totals(void);

#endif

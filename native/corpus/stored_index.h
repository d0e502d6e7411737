/* The values behind keys: an index of the library in index/, or the parts of a payload that will become one.
 *
 * Cleaning. A timer cleans indexes in steps of at most a millisecond, on primaries and on replicas, and runs only while
 * there is something to clean. Cleaning is neither replicated nor simultaneous on both, and need not be: it changes
 * neither what a search finds, nor in which order, nor the digest, nor what the server saves. It shows in one thing
 * only: until it has run, frequencies lag behind a document of more than 4,096 distinct terms (index.h), and rankings
 * weigh by them for a few milliseconds. While the server has a child that saves, it does not clean, because each write
 * would copy a page.
 *
 * Threads. The server may free a value on a thread of its own, so the list of all of them has a lock; everything else
 * is for the main thread. The type has no callback `unlink` that could take a value off the list earlier: the server
 * calls it also for RENAME and MOVE, after which the value lives on. */
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
    Index *index;            /* NULL: incomplete, some parts of its payload have come */
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

/* A new value, which takes over the index; without an index it is incomplete. */
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
/* Makes the index of the parts; does nothing and returns false when they are damaged or incomplete. */
bool stored_index_complete(StoredIndex *stored);

/* Call it after a change: the timer then cleans the index. */
void stored_index_changed(StoredIndex *stored);

/* Whether a complete index has no document, not even an open one. */
bool stored_index_is_empty(const StoredIndex *stored);
size_t stored_index_memory(const StoredIndex *stored);
/* The totals of all complete indexes. */
StoredTotals stored_index_totals(void);

#endif

/* The values of keys with the type qa-index_. A value is an index of the library in native/index. While QA.INDEX.LOAD
 * loads an index in parts, the index is incomplete: the value is the list of the received parts.
 *
 * CLEANING is the work of index_maintain(): counting overdue terms and removing dead postings (index.h). A timer cleans
 * the indexes in steps of at most a millisecond, on primaries and replicas. The timer runs only if an index needs
 * cleaning. The servers clean at different times, because cleaning is not replicated. This is correct: cleaning changes
 * neither the digest nor the saved data, and changes rankings in only one case. A write may stop counting after 4,096
 * terms of a new or removed document (WORK_PER_CALL). Cleaning or later writes count the other terms. So for a few
 * milliseconds after the commit or the removal of a document with more distinct terms, rankings use the earlier
 * document frequencies for some terms. While a child process of the server saves, the module does not clean, because
 * each write to a page of memory would copy the page.
 *
 * THREADS. The server may free a value on a background thread, so a lock guards the list of all values. Everything else
 * is for the main thread only. The type has no `unlink` callback to remove a value from the list, because the server
 * also calls `unlink` for RENAME and MOVE, which keep the value. */
#pragma once

#include "index/index.h"
#include "server/module_api.h"

/* A part of a payload: the bytes of one QA.INDEX.LOAD, or a string of an RDB file. */
typedef struct Part {
    struct Part *next;
    size_t length; /* 1 to INDEX_CHUNK */
    uint8_t bytes[];
} Part;

typedef struct StoredIndex {
    Index *index;            /* NULL: incomplete; some parts of its payload have arrived */
    Part *parts, *last_part; /* NULL if the index is complete */
    uint64_t part_bytes;
    uint64_t identity; /* different for every value of this process and, most likely, of earlier processes; never 0 */
    struct StoredIndex *next, *previous; /* in the list of all values */
    bool untidy;                         /* the index needs cleaning */
} StoredIndex;

typedef struct StoredTotals {
    uint64_t indexes, documents, sentences, bytes;
} StoredTotals;

int stored_index_on_load(RedisModuleCtx *ctx);

/* Returns a new value that owns the index. If `index` is NULL, the value is incomplete. */
StoredIndex *stored_index_new(Index *index);
/* Frees a value. May be called on any thread. */
void stored_index_free(void *stored);

/* Return a new index with the module's allocator: an empty index, or the index in a payload. NULL: the payload is
 * damaged. */
Index *stored_index_empty(void);
Index *stored_index_read(IndexRead read, void *context);

/* The module's allocator, and the random key of the hash functions. watched.c uses both for its IndexWatch structures.
 */
IndexAllocator stored_index_allocator(void);
const uint64_t *stored_index_hash_key(void);

/* Returns the shared empty index, for missing keys and for filters. Callers must not change it. */
Index *stored_index_none(void);

void stored_index_add_part(StoredIndex *stored, const void *bytes, size_t length);
void stored_index_drop_parts(StoredIndex *stored);
/* Makes the index from the parts of its payload. False: the parts are damaged or incomplete, and nothing changes. */
bool stored_index_complete(StoredIndex *stored);

/* Call it after a change of the index, so that the timer cleans the index. */
void stored_index_changed(StoredIndex *stored);

/* True: a complete index has no documents and no open documents. */
bool stored_index_is_empty(const StoredIndex *stored);
size_t stored_index_memory(const StoredIndex *stored);
/* The totals of all complete indexes. */
StoredTotals stored_index_totals(void);

/* stored_index.h explains the list of all indexes, their parts and their cleaning. */
#include "corpus/stored_index.h"

#include <pthread.h>
#include <string.h>

#include "server/server.h"

/* A step of the cleaning does at most about STEP_UNITS units of work. A unit takes at most about 20 ns (index.h), so a
 * step takes at most about 1 ms. The next step follows after STEP_EVERY_MS. While a child process of the server saves,
 * the timer instead checks every CHILD_LOOK_MS whether the child process has ended. */
enum { STEP_UNITS = 50000, STEP_EVERY_MS = 5, CHILD_LOOK_MS = 100 };

static uint64_t hash_key[2]; /* of this process; saved payloads do not depend on it */
static Index *none;
static bool ticking;
static uint64_t last_identity; /* guarded by lock; below 2^53, so that parsers of JSON read it exactly */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static StoredIndex *first, *last; /* guarded by lock, with the links of each value */

/* ---- The list ---- */

static void join(StoredIndex *stored) {
    stored->next = NULL;
    stored->previous = last;
    if (last) last->next = stored;
    else first = stored;
    last = stored;
}

static void leave(StoredIndex *stored) {
    if (stored->previous) stored->previous->next = stored->next;
    else first = stored->next;
    if (stored->next) stored->next->previous = stored->previous;
    else last = stored->previous;
}

StoredIndex *stored_index_new(Index *index) {
    StoredIndex *stored = RedisModule_Calloc(1, sizeof *stored);
    stored->index = index;
    pthread_mutex_lock(&lock);
    stored->identity = ++last_identity;
    join(stored);
    pthread_mutex_unlock(&lock);
    return stored;
}

void stored_index_free(void *value) {
    StoredIndex *stored = value;
    pthread_mutex_lock(&lock);
    leave(stored);
    pthread_mutex_unlock(&lock);
    if (stored->index) index_free(stored->index);
    stored_index_drop_parts(stored);
    RedisModule_Free(stored);
}

StoredTotals stored_index_totals(void) {
    StoredTotals totals = {0};
    pthread_mutex_lock(&lock);
    for (const StoredIndex *stored = first; stored; stored = stored->next) {
        if (!stored->index) continue;
        IndexCounts counts = index_counts(stored->index);
        totals.indexes++;
        totals.documents += counts.documents;
        totals.sentences += counts.sentences;
        totals.bytes += counts.bytes;
    }
    pthread_mutex_unlock(&lock);
    return totals;
}

/* ---- Cleaning ---- */

static void schedule(long long after_ms);

/* Cleans the first index that needs cleaning by one step, and moves it to the end of the list. */
static void tidy(RedisModuleCtx *ctx, void *data) {
    (void)data;
    ticking = false;
    bool child = RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_ACTIVE_CHILD;
    pthread_mutex_lock(&lock);
    StoredIndex *stored = first;
    while (stored && !stored->untidy) stored = stored->next;
    if (stored && !child) {
        stored->untidy = index_maintain(stored->index, STEP_UNITS);
        leave(stored);
        join(stored);
    }
    pthread_mutex_unlock(&lock);
    if (stored) schedule(child ? CHILD_LOOK_MS : STEP_EVERY_MS);
}

static void schedule(long long after_ms) {
    if (ticking) return;
    ticking = true;
    RedisModule_CreateTimer(server_ctx(), after_ms, tidy, NULL);
}

void stored_index_changed(StoredIndex *stored) {
    stored->untidy = true;
    schedule(STEP_EVERY_MS);
}

/* ---- Indexes ---- */

static void *allocate(size_t bytes) { return RedisModule_Alloc(bytes); }
static void release(void *pointer) { RedisModule_Free(pointer); }

static const IndexAllocator ALLOCATOR = {allocate, release};

IndexAllocator stored_index_allocator(void) { return ALLOCATOR; }
const uint64_t *stored_index_hash_key(void) { return hash_key; }
Index *stored_index_empty(void) { return index_new(ALLOCATOR, hash_key); }
Index *stored_index_read(IndexRead read, void *context) { return index_load(ALLOCATOR, hash_key, read, context); }
Index *stored_index_none(void) { return none; }

bool stored_index_is_empty(const StoredIndex *stored) {
    IndexCounts counts = index_counts(stored->index);
    return !counts.documents && !counts.open_documents;
}

size_t stored_index_memory(const StoredIndex *stored) {
    size_t bytes = sizeof *stored + stored->part_bytes;
    if (stored->index) bytes += index_memory(stored->index);
    for (const Part *part = stored->parts; part; part = part->next) bytes += sizeof *part;
    return bytes;
}

/* ---- Parts ---- */

void stored_index_add_part(StoredIndex *stored, const void *bytes, size_t length) {
    Part *part = RedisModule_Alloc(sizeof *part + length);
    part->next = NULL;
    part->length = length;
    memcpy(part->bytes, bytes, length);
    if (stored->parts) stored->last_part->next = part;
    else stored->parts = part;
    stored->last_part = part;
    stored->part_bytes += length;
}

void stored_index_drop_parts(StoredIndex *stored) {
    for (Part *part = stored->parts, *next; part; part = next) {
        next = part->next;
        RedisModule_Free(part);
    }
    stored->parts = stored->last_part = NULL;
    stored->part_bytes = 0;
}

static size_t read_part(void *context, void *bytes, size_t length) {
    const Part **next = context, *part = *next;
    if (!part || part->length > length) return 0;
    memcpy(bytes, part->bytes, part->length);
    *next = part->next;
    return part->length;
}

bool stored_index_complete(StoredIndex *stored) {
    const Part *next = stored->parts;
    Index *index = stored_index_read(read_part, &next);
    if (!index) return false;
    stored->index = index;
    stored_index_drop_parts(stored);
    return true;
}

int stored_index_on_load(RedisModuleCtx *ctx) {
    (void)ctx;
    RedisModule_GetRandomBytes((unsigned char *)hash_key, sizeof hash_key);
    RedisModule_GetRandomBytes((unsigned char *)&last_identity, sizeof last_identity);
    last_identity &= (UINT64_C(1) << 52) - 1;
    none = stored_index_empty();
    return REDISMODULE_OK;
}

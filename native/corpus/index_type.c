/* The data type qa-index_: keys, RDB, AOF. COPY is not supported, because COPY would have to save and load the whole
 * index, and would block the server during this time. */
#include "corpus/index_type.h"

#include <string.h>

#include "server/keyspace.h"

/* Encoding version 1 is a number (1: the index is complete, 0: incomplete), then strings of 1 to INDEX_CHUNK bytes,
 * then an empty string. The strings together are the payload of the index (index/save.c). For an incomplete index, the
 * strings are the parts of its payload that have arrived. */
#define INDEX_ENCVER 1

static RedisModuleType *index_module_type;

/* ---- Keys ---- */

static const char *taken(KeyState state, void *value, StoredIndex **stored) {
    *stored = value;
    return state == KEY_WRONGTYPE ? REDISMODULE_ERRORMSG_WRONGTYPE : NULL;
}

static const char *check_complete(const char *error, const StoredIndex *stored) {
    if (error || !stored || stored->index) return error;
    return "ERR index is not complete: the end of its payload is missing";
}

const char *index_key_read(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored) {
    void *value;
    KeyState state = keyspace_read(ctx, name, index_module_type, &value);
    return check_complete(taken(state, value, stored), value);
}

const char *index_key_peek_parts(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored) {
    void *value;
    KeyState state = keyspace_peek(ctx, name, index_module_type, &value);
    return taken(state, value, stored);
}

const char *index_key_peek(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex **stored) {
    const char *error = index_key_peek_parts(ctx, name, stored);
    return check_complete(error, *stored);
}

void index_key_store(RedisModuleCtx *ctx, RedisModuleString *name, StoredIndex *stored, const char *event) {
    keyspace_store(ctx, name, index_module_type, stored, event);
}

/* ---- RDB ---- */

static bool save_chunk(void *io, const void *bytes, size_t length) {
    RedisModule_SaveStringBuffer(io, bytes, length);
    return !RedisModule_IsIOError(io);
}

static void index_rdb_save(RedisModuleIO *io, void *value) {
    const StoredIndex *stored = value;
    RedisModule_SaveUnsigned(io, stored->index != NULL);
    if (stored->index && index_save(stored->index, save_chunk, io) != INDEX_OK) return;
    for (const Part *part = stored->parts; part; part = part->next)
        RedisModule_SaveStringBuffer(io, (const char *)part->bytes, part->length);
    RedisModule_SaveStringBuffer(io, "", 0);
}

typedef struct Loading {
    RedisModuleIO *io;
    bool failed, ended;
} Loading;

static size_t load_chunk(void *context, void *bytes, size_t length) {
    Loading *loading = context;
    size_t got;
    if (loading->failed || loading->ended) return 0;
    char *chunk = RedisModule_LoadStringBuffer(loading->io, &got);
    loading->failed = !chunk || RedisModule_IsIOError(loading->io) || got > length;
    loading->ended = !loading->failed && !got;
    if (!loading->failed) memcpy(bytes, chunk, got);
    if (chunk) RedisModule_Free(chunk);
    return loading->failed ? 0 : got;
}

static StoredIndex *load_complete(Loading *loading) {
    Index *index = stored_index_read(load_chunk, loading);
    if (!index) return NULL;
    if (loading->ended) return stored_index_new(index);
    index_free(index);
    return NULL;
}

static StoredIndex *load_parts(Loading *loading) {
    StoredIndex *stored = stored_index_new(NULL);
    uint8_t *bytes = RedisModule_Alloc(INDEX_CHUNK);
    for (size_t got; (got = load_chunk(loading, bytes, INDEX_CHUNK));) stored_index_add_part(stored, bytes, got);
    RedisModule_Free(bytes);
    if (loading->ended) return stored;
    stored_index_free(stored);
    return NULL;
}

static void *index_rdb_load(RedisModuleIO *io, int encver) {
    if (encver != INDEX_ENCVER) {
        RedisModule_LogIOError(io, "warning", "index has encoding version %d, this module reads version %d", encver,
                               INDEX_ENCVER);
        return NULL;
    }
    Loading loading = {.io = io};
    uint64_t complete = RedisModule_LoadUnsigned(io);
    StoredIndex *stored = NULL;
    if (!RedisModule_IsIOError(io) && complete <= 1) stored = complete ? load_complete(&loading) : load_parts(&loading);
    if (!stored) RedisModule_LogIOError(io, "warning", "the payload of an index is damaged");
    return stored;
}

/* ---- AOF ---- */

typedef struct Rewriting {
    RedisModuleIO *io;
    RedisModuleString *key;
    uint64_t offset;
} Rewriting;

static bool emit_part(void *context, const void *bytes, size_t length) {
    Rewriting *rewriting = context;
    RedisModule_EmitAOF(rewriting->io, "QA.INDEX.LOAD", "slb", rewriting->key, (long long)rewriting->offset, bytes,
                        length);
    rewriting->offset += length;
    return !RedisModule_IsIOError(rewriting->io);
}

/* Writes the index as QA.INDEX.LOAD commands. CLUSTER MIGRATESLOTS of Valkey also sends an index as these commands. */
static void index_aof_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    const StoredIndex *stored = value;
    Rewriting rewriting = {.io = io, .key = key};
    for (const Part *part = stored->parts; part; part = part->next) emit_part(&rewriting, part->bytes, part->length);
    if (stored->index && index_save(stored->index, emit_part, &rewriting) == INDEX_OK) emit_part(&rewriting, "", 0);
}

/* ---- Other callbacks of the type ---- */

static size_t index_mem_usage(const void *value) { return stored_index_memory(value); }

/* Estimates the number of allocations of the index. */
static size_t index_free_effort(RedisModuleString *key, const void *value) {
    (void)key;
    const StoredIndex *stored = value;
    if (!stored->index) return 1 + stored->part_bytes / INDEX_CHUNK;
    IndexCounts counts = index_counts(stored->index);
    return 1 + counts.documents + counts.open_documents + counts.distinct_terms;
}

static void index_key_digest(RedisModuleDigest *digest, void *value) {
    const StoredIndex *stored = value;
    if (stored->index) RedisModule_DigestAddLongLong(digest, (long long)index_digest(stored->index));
    for (const Part *part = stored->parts; part; part = part->next)
        RedisModule_DigestAddStringBuffer(digest, (const char *)part->bytes, part->length);
    RedisModule_DigestEndSequence(digest);
}

int index_type_create(RedisModuleCtx *ctx) {
    RedisModuleTypeMethods methods = {
        .version = REDISMODULE_TYPE_METHOD_VERSION,
        .rdb_load = index_rdb_load,
        .rdb_save = index_rdb_save,
        .aof_rewrite = index_aof_rewrite,
        .mem_usage = index_mem_usage,
        .free_effort = index_free_effort,
        .digest = index_key_digest,
        .free = stored_index_free,
    };
    index_module_type = RedisModule_CreateDataType(ctx, "qa-index_", INDEX_ENCVER, &methods);
    return index_module_type ? REDISMODULE_OK : REDISMODULE_ERR;
}

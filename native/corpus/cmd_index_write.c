/* QA.INDEX.PUT, QA.INDEX.DEL and QA.INDEX.LOAD: a command checks all before it changes anything. One that changes
 * anything is replicated verbatim, because the same operations make the same index. docs/index.md has the formats. */
#include "corpus/cmd_index_write.h"

#include <stdio.h>

#include "corpus/index_type.h"
#include "corpus/watched.h"
#include "server/args.h"
#include "server/commands.h"
#include "server/keyspace.h"

enum { DOCUMENT_WORDS = 3, MAX_ERROR = 200 };

/* ---- QA.INDEX.PUT ---- */

typedef struct Document {
    const char *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
    IndexPacked packed;
} Document;

static const char *parse_document(RedisModuleString **argv, int number, Document *document, char *error) {
    document->id = RedisModule_StringPtrLen(argv[0], &document->id_length);
    document->fields = RedisModule_StringPtrLen(argv[1], &document->fields_length);
    document->sentences = RedisModule_StringPtrLen(argv[2], &document->sentences_length);
    if (!document->id_length || document->id_length > INDEX_MAX_DOCUMENT_ID) {
        snprintf(error, MAX_ERROR, "ERR document %d: its id has %zu bytes, it must have 1 to %d", number,
                 document->id_length, INDEX_MAX_DOCUMENT_ID);
        return error;
    }
    if (!index_fields_valid(document->fields, document->fields_length)) {
        snprintf(error, MAX_ERROR, "ERR document %d: its fields are not valid", number);
        return error;
    }
    if (!index_packed_check(document->sentences, document->sentences_length, &document->packed)) {
        snprintf(error, MAX_ERROR, "ERR document %d: %s, at byte %zu of its sentences", number,
                 document->packed.problem, document->packed.offset);
        return error;
    }
    return NULL;
}

static void tell_watch(Watched *watched, Index *index, const Document *document) {
    if (!watched) return;
    index_watch_removing(watched->watch, index, document->id, document->id_length, watched);
    IndexIncoming incoming = {.id = document->id,
                              .fields = document->fields,
                              .sentences = document->sentences,
                              .id_length = document->id_length,
                              .fields_length = document->fields_length,
                              .sentences_length = document->sentences_length};
    index_watch_adding(watched->watch, index, &incoming, watched);
}

/* Instead of the live document of that id, if there is one: then *replaced is counted up. */
static IndexStatus put_document(Index *index, const Document *document, long long *replaced) {
    IndexPending *pending;
    IndexStatus status = index_begin(index, document->id, document->id_length, document->fields,
                                     document->fields_length, &pending);
    if (status != INDEX_OK) return status;
    status = index_add_packed(pending, document->sentences, document->sentences_length, &document->packed);
    if (status == INDEX_OK) {
        status = index_commit(pending);
        if (status != INDEX_EXISTS) return status;
        index_remove(index, document->id, document->id_length);
        ++*replaced;
        return index_commit(pending);
    }
    index_abort(pending);
    return status;
}

static int put_documents(RedisModuleCtx *ctx, RedisModuleString *key, StoredIndex *stored, const Document *documents,
                         int count) {
    bool is_new = !stored;
    long long replaced = 0, sentences = 0;
    IndexStatus status = INDEX_OK;
    if (is_new) stored = stored_index_new(stored_index_empty());
    Watched *watched = watched_begin(ctx, key);
    for (int i = 0; i < count && status == INDEX_OK; i++) {
        tell_watch(watched, stored->index, &documents[i]);
        status = put_document(stored->index, &documents[i], &replaced);
        sentences += (long long)documents[i].packed.sentences;
    }
    watched_end(watched, stored->index);
    if (is_new) index_key_store(ctx, key, stored, "qa.index.put");
    else keyspace_changed(ctx, key, "qa.index.put");
    stored_index_changed(stored);
    RedisModule_ReplicateVerbatim(ctx); /* a replica has the same outcome, whichever it is */
    if (status != INDEX_OK) return RedisModule_ReplyWithError(ctx, "ERR index is full");
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithLongLong(ctx, count - replaced);
    RedisModule_ReplyWithLongLong(ctx, replaced);
    return RedisModule_ReplyWithLongLong(ctx, sentences);
}

/* QA.INDEX.PUT key (document fields sentences)+ */
static int QA_INDEX_PUT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2 + DOCUMENT_WORDS || (argc - 2) % DOCUMENT_WORDS) return RedisModule_WrongArity(ctx);
    StoredIndex *stored;
    const char *error = index_key_peek(ctx, argv[1], &stored);
    if (!error && stored) error = index_key_check_complete(stored);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    int count = (argc - 2) / DOCUMENT_WORDS;
    char line[MAX_ERROR];
    Document *documents = RedisModule_Alloc((size_t)count * sizeof *documents);
    for (int i = 0; i < count && !error; i++)
        error = parse_document(argv + 2 + i * DOCUMENT_WORDS, i + 1, &documents[i], line);
    if (error) RedisModule_ReplyWithError(ctx, error);
    else put_documents(ctx, argv[1], stored, documents, count);
    RedisModule_Free(documents);
    return REDISMODULE_OK;
}

/* ---- QA.INDEX.DEL ---- */

/* QA.INDEX.DEL key document+ */
static int QA_INDEX_DEL_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 3) return RedisModule_WrongArity(ctx);
    StoredIndex *stored;
    const char *error = index_key_peek(ctx, argv[1], &stored);
    if (!error && stored) error = index_key_check_complete(stored);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    long long removed = 0;
    Watched *watched = stored ? watched_begin(ctx, argv[1]) : NULL;
    for (int i = 2; stored && i < argc; i++) {
        size_t length;
        const char *id = RedisModule_StringPtrLen(argv[i], &length);
        if (watched) index_watch_removing(watched->watch, stored->index, id, length, watched);
        removed += index_remove(stored->index, id, length) == INDEX_OK;
    }
    if (stored) watched_end(watched, stored->index);
    if (removed) {
        if (index_counts(stored->index).documents) {
            keyspace_changed(ctx, argv[1], "qa.index.del");
            stored_index_changed(stored);
        } else {
            keyspace_delete(ctx, argv[1]);
        }
        RedisModule_ReplicateVerbatim(ctx);
    }
    return RedisModule_ReplyWithLongLong(ctx, removed);
}

/* ---- QA.INDEX.LOAD ---- */

/* A part at the wrong offset belongs to another payload, or a part is missing. */
static const char *check_part(const StoredIndex *stored, long long offset, size_t length, char *error) {
    if (stored && stored->index) return "BUSYKEY Target key name already exists.";
    if (length > INDEX_CHUNK) {
        snprintf(error, MAX_ERROR, "ERR a part has %zu bytes, it must have %d at most", length, INDEX_CHUNK);
        return error;
    }
    uint64_t expected = stored ? stored->part_bytes : 0;
    if ((uint64_t)offset == expected || (!offset && length)) return NULL;
    snprintf(error, MAX_ERROR, "ERR offset is %lld, the next part begins at %llu", offset,
             (unsigned long long)expected);
    return error;
}

/* QA.INDEX.LOAD key offset part: an empty part ends the payload, one at offset 0 begins it anew. */
static int QA_INDEX_LOAD_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    long long offset;
    size_t length;
    char line[MAX_ERROR];
    if (!arg_count(argv[2], INT64_MAX, &offset))
        return RedisModule_ReplyWithError(ctx, "ERR offset must be a number that is not negative");
    const char *part = RedisModule_StringPtrLen(argv[3], &length);
    StoredIndex *stored;
    const char *error = index_key_peek(ctx, argv[1], &stored);
    if (!error) error = check_part(stored, offset, length, line);
    if (!error && !length && (!stored || !stored_index_complete(stored)))
        error = "ERR the payload of the index is damaged";
    if (error) return RedisModule_ReplyWithError(ctx, error);
    bool is_new = !stored;
    if (is_new) stored = stored_index_new(NULL);
    if (length) {
        if (!offset) stored_index_drop_parts(stored);
        stored_index_add_part(stored, part, length);
    }
    if (is_new) index_key_store(ctx, argv[1], stored, "qa.index.load");
    else keyspace_changed(ctx, argv[1], "qa.index.load");
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithSimpleString(ctx, "OK");
}

int index_write_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.INDEX.PUT", QA_INDEX_PUT_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"QA.INDEX.DEL", QA_INDEX_DEL_RedisCommand, "write", 1, 1, 1, NULL},
        {"QA.INDEX.LOAD", QA_INDEX_LOAD_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
    };
    if (stored_index_on_load(ctx) != REDISMODULE_OK || index_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

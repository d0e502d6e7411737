/* QA.INDEX.PUT, QA.INDEX.DEL, QA.INDEX.CHANGE and QA.INDEX.LOAD. A command checks all arguments before it changes the
 * index. A command that changes the index is replicated verbatim, because the same operations make the same index on
 * each server. docs/inverted-index.md describes the formats. */
#include "corpus/cmd_index_write.h"

#include <stdio.h>

#include "corpus/document_argument.h"
#include "corpus/index_type.h"
#include "server/args.h"
#include "server/commands.h"
#include "server/keyspace.h"

enum { DOCUMENT_WORDS = 3, MAX_ERROR = MAX_DOCUMENT_ERROR };

/* ---- QA.INDEX.PUT ---- */

/* Adds a document. If a live document has the same id, replaces it and increments *replaced. */
static IndexStatus put_document(Index *index, const Document *document, long long *replaced) {
    IndexPending *pending;
    IndexStatus status = index_begin(index, document->id, document->id_length, document->fields,
                                     document->fields_length, &pending);
    if (status != INDEX_OK) return status;
    status = index_add(pending, document->sentences, document->sentences_length, document->packed.sentences);
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
        const Document *document = &documents[i];
        index_abort_id(stored->index, document->id, document->id_length);
        if (watched) index_watch_removing(watched->watch, stored->index, document->id, document->id_length);
        document_comes(watched, stored->index, document);
        status = put_document(stored->index, document, &replaced);
        sentences += (long long)document->packed.sentences;
    }
    watched_end(watched, stored->index);
    if (is_new) index_key_store(ctx, key, stored, "qa.index.put");
    else keyspace_changed(ctx, key, "qa.index.put");
    stored_index_changed(stored);
    RedisModule_ReplicateVerbatim(ctx); /* a replica has the same outcome, success or not */
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
    if (error) return RedisModule_ReplyWithError(ctx, error);
    int count = (argc - 2) / DOCUMENT_WORDS;
    char line[MAX_ERROR];
    Document *documents = RedisModule_Alloc((size_t)count * sizeof *documents);
    for (int i = 0; i < count && !error; i++) {
        RedisModuleString **words = argv + 2 + i * DOCUMENT_WORDS;
        error = document_head(words, i + 1, &documents[i], line);
        if (!error) error = document_sentences(words[2], i + 1, &documents[i], line);
    }
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
    if (error) return RedisModule_ReplyWithError(ctx, error);
    long long removed = 0;
    bool aborted = false;
    Watched *watched = stored ? watched_begin(ctx, argv[1]) : NULL;
    for (int i = 2; stored && i < argc; i++) {
        size_t length;
        const char *id = RedisModule_StringPtrLen(argv[i], &length);
        if (watched) index_watch_removing(watched->watch, stored->index, id, length);
        removed += index_remove(stored->index, id, length) == INDEX_OK;
        aborted |= index_abort_id(stored->index, id, length);
    }
    if (stored) watched_end(watched, stored->index);
    if (removed || aborted) {
        if (stored_index_is_empty(stored)) {
            keyspace_delete(ctx, argv[1]);
        } else {
            if (removed) keyspace_changed(ctx, argv[1], "qa.index.del");
            stored_index_changed(stored);
        }
        RedisModule_ReplicateVerbatim(ctx);
    }
    return RedisModule_ReplyWithLongLong(ctx, removed);
}

/* ---- QA.INDEX.CHANGE ---- */

/* QA.INDEX.CHANGE key document fields */
static int QA_INDEX_CHANGE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    StoredIndex *stored;
    Document document;
    char line[MAX_DOCUMENT_ERROR];
    const char *error = index_key_peek(ctx, argv[1], &stored);
    if (!error) error = document_head(argv + 2, 1, &document, line);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    IndexDocument found;
    if (!stored || index_get(stored->index, document.id, document.id_length, &found) != INDEX_OK)
        return RedisModule_ReplyWithLongLong(ctx, 0);
    Watched *watched = watched_begin(ctx, argv[1]);
    IndexIncoming incoming = {.id = document.id,
                              .fields = document.fields,
                              .id_length = document.id_length,
                              .fields_length = document.fields_length};
    if (watched) index_watch_changing(watched->watch, stored->index, &incoming);
    index_change(stored->index, document.id, document.id_length, document.fields, document.fields_length);
    watched_end(watched, stored->index);
    keyspace_changed(ctx, argv[1], "qa.index.change");
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithLongLong(ctx, 1);
}

/* ---- QA.INDEX.LOAD ---- */

/* Refuses a part if the key already has a complete index, if the part is too long, or if its offset is wrong. With a
 * wrong offset, the part belongs to a different payload, or an earlier part is missing. Returns NULL or an error line.
 */
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

/* QA.INDEX.LOAD key offset part. An empty part ends the payload. A part at offset 0 starts a new payload. */
static int QA_INDEX_LOAD_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    long long offset;
    size_t length;
    char line[MAX_ERROR];
    if (!arg_count(argv[2], INT64_MAX, &offset))
        return RedisModule_ReplyWithError(ctx, "ERR offset must be a number that is not negative");
    const char *part = RedisModule_StringPtrLen(argv[3], &length);
    StoredIndex *stored;
    const char *error = index_key_peek_parts(ctx, argv[1], &stored);
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
        {"QA.INDEX.CHANGE", QA_INDEX_CHANGE_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"QA.INDEX.LOAD", QA_INDEX_LOAD_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
    };
    if (stored_index_on_load(ctx) != REDISMODULE_OK || index_type_create(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

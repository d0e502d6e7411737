/* QA.INDEX.BEGIN, QA.INDEX.ADD, QA.INDEX.COMMIT and QA.INDEX.ABORT write a document in parts, so that a long document
 * does not block the server. Each QA.INDEX.ADD writes the sentences of its part to the index. Rankings do not find the
 * sentences before QA.INDEX.COMMIT. The commit only copies the list of the document's terms, about 2 bytes for each
 * distinct term of a part (index/index.h).
 *
 * A document is open between QA.INDEX.BEGIN and QA.INDEX.COMMIT or QA.INDEX.ABORT. All four commands are replicated
 * verbatim, and open documents are saved. So the remaining parts can be added on a replica, on a restarted server and
 * on the target of a migrating slot. All servers must discard the same open documents, so open documents have no time
 * limit. An open document is discarded in these cases:
 * - QA.INDEX.BEGIN, QA.INDEX.PUT or QA.INDEX.DEL names the same document.
 * - The key of its index is deleted.
 * - It is the oldest of INDEX_MAX_OPEN open documents of its index, and QA.INDEX.BEGIN opens one more document in this
 *   index.
 * - QA.INDEX.ADD cannot append a part of the document, because the index is full. */
#include "corpus/cmd_index_parts.h"

#include <stdio.h>
#include <string.h>

#include "corpus/document_argument.h"
#include "corpus/index_type.h"
#include "server/args.h"
#include "server/commands.h"
#include "server/keyspace.h"

#define MAX_PLACE ((1LL << 48) - 1)

/* ---- QA.INDEX.BEGIN ---- */

/* QA.INDEX.BEGIN key document fields */
static int QA_INDEX_BEGIN_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    StoredIndex *stored;
    Document document;
    IndexPending *pending;
    char line[MAX_DOCUMENT_ERROR];
    const char *error = index_key_peek(ctx, argv[1], &stored);
    if (!error) error = document_head(argv + 2, 1, &document, line);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    bool is_new = !stored;
    if (is_new) stored = stored_index_new(stored_index_empty());
    index_abort_id(stored->index, document.id, document.id_length);
    index_make_room(stored->index);
    IndexStatus status = index_begin(stored->index, document.id, document.id_length, document.fields,
                                     document.fields_length, &pending);
    if (is_new) index_key_store(ctx, argv[1], stored, "qa.index.begin");
    stored_index_changed(stored);
    RedisModule_ReplicateVerbatim(ctx);
    if (status != INDEX_OK) return RedisModule_ReplyWithError(ctx, "ERR index is full");
    index_keep_open(pending);
    return RedisModule_ReplyWithLongLong(ctx, (long long)index_open(pending).place);
}

/* ---- The open document at a place ----
 *
 * Commands name the document and its place, the number that QA.INDEX.BEGIN has returned (index/open.c). The place alone
 * is not enough: after a key was deleted and created again, another document may be open at the same place. */

typedef struct Opened {
    StoredIndex *stored; /* NULL: the key is missing */
    IndexPending *pending;
    IndexOpen document;
} Opened;

static bool is_named(RedisModuleString *name, const IndexOpen *open) {
    size_t length;
    const char *id = RedisModule_StringPtrLen(name, &length);
    return length == open->id_length && !memcmp(id, open->id, length);
}

/* Finds the open document that a command names. Returns NULL or an error line. If the document is not open at the
 * place, sets `pending` to NULL and returns NULL. */
static const char *find_open(RedisModuleCtx *ctx, RedisModuleString **argv, Opened *opened) {
    long long place;
    *opened = (Opened){0};
    const char *error = index_key_peek(ctx, argv[1], &opened->stored);
    if (!error && !arg_count(argv[3], MAX_PLACE, &place)) error = "ERR place must be a number that QA.INDEX.BEGIN gave";
    if (error || !opened->stored) return error;
    opened->pending = index_open_at(opened->stored->index, (uint64_t)place);
    if (!opened->pending) return NULL;
    opened->document = index_open(opened->pending);
    if (!is_named(argv[2], &opened->document)) opened->pending = NULL;
    return NULL;
}

/* Like find_open. Also returns an error if the document is not open at the place, or if the caller's number of
 * sentences (argv[4]) is not the current number. `line` is the buffer for this error line. */
static const char *find_ready(RedisModuleCtx *ctx, RedisModuleString **argv, Opened *opened, char *line) {
    long long sentences;
    const char *error = find_open(ctx, argv, opened);
    if (!error && !opened->pending)
        error = "ERR the document is not open at this place: it was committed, aborted or discarded";
    if (!error && !arg_count(argv[4], MAX_PLACE, &sentences)) error = "ERR number of sentences must not be negative";
    if (error || (uint64_t)sentences == opened->document.sentences) return error;
    snprintf(line, MAX_DOCUMENT_ERROR, "ERR the document has %u sentences so far, not %lld", opened->document.sentences,
             sentences);
    return line;
}

/* ---- QA.INDEX.ADD ---- */

static const char *parse_part(RedisModuleString *argument, const IndexOpen *open, Document *part, char *line) {
    *part = (Document){
        .id = open->id, .fields = open->fields, .id_length = open->id_length, .fields_length = open->fields_length};
    size_t length;
    RedisModule_StringPtrLen(argument, &length);
    if (length <= INDEX_CHUNK) return document_sentences(argument, 1, part, line);
    snprintf(line, MAX_DOCUMENT_ERROR, "ERR a part has %zu bytes, it must have %d at most", length, INDEX_CHUNK);
    return line;
}

/* QA.INDEX.ADD key document place sentences-before part */
static int QA_INDEX_ADD_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 6) return RedisModule_WrongArity(ctx);
    Opened opened;
    Document part;
    char line[MAX_DOCUMENT_ERROR];
    const char *error = find_ready(ctx, argv, &opened, line);
    if (!error) error = parse_part(argv[5], &opened.document, &part, line);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    Index *index = opened.stored->index;
    Watched *watched = watched_begin(ctx, argv[1]);
    document_comes(watched, index, &part);
    IndexStatus status = index_add(opened.pending, part.sentences, part.sentences_length, part.packed.sentences);
    if (status != INDEX_OK) index_abort(opened.pending);
    watched_end(watched, index);
    stored_index_changed(opened.stored);
    RedisModule_ReplicateVerbatim(ctx); /* a replica has the same outcome, success or not */
    if (status != INDEX_OK) return RedisModule_ReplyWithError(ctx, "ERR index is full: the document was aborted");
    return RedisModule_ReplyWithLongLong(ctx, (long long)index_open(opened.pending).sentences);
}

/* ---- QA.INDEX.COMMIT, QA.INDEX.ABORT ---- */

/* QA.INDEX.COMMIT key document place sentences */
static int QA_INDEX_COMMIT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 5) return RedisModule_WrongArity(ctx);
    Opened opened;
    char line[MAX_DOCUMENT_ERROR];
    const char *error = find_ready(ctx, argv, &opened, line);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    Index *index = opened.stored->index;
    const IndexOpen *document = &opened.document;
    Watched *watched = watched_begin(ctx, argv[1]);
    if (watched) {
        index_watch_removing(watched->watch, index, document->id, document->id_length);
        index_watch_committing(watched->watch, opened.pending);
    }
    bool replaces = index_remove(index, document->id, document->id_length) == INDEX_OK;
    index_commit(
        opened.pending); /* succeeds: find_ready refuses aborted documents, and no live document has the id now */
    watched_end(watched, index);
    keyspace_changed(ctx, argv[1], "qa.index.put");
    stored_index_changed(opened.stored);
    RedisModule_ReplicateVerbatim(ctx);
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithLongLong(ctx, !replaces);
    RedisModule_ReplyWithLongLong(ctx, replaces);
    return RedisModule_ReplyWithLongLong(ctx, document->sentences);
}

/* QA.INDEX.ABORT key document place */
static int QA_INDEX_ABORT_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    Opened opened;
    const char *error = find_open(ctx, argv, &opened);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (!opened.pending) return RedisModule_ReplyWithLongLong(ctx, 0);
    index_abort(opened.pending);
    if (stored_index_is_empty(opened.stored)) keyspace_delete(ctx, argv[1]);
    else stored_index_changed(opened.stored);
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithLongLong(ctx, 1);
}

int index_parts_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.INDEX.BEGIN", QA_INDEX_BEGIN_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"QA.INDEX.ADD", QA_INDEX_ADD_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"QA.INDEX.COMMIT", QA_INDEX_COMMIT_RedisCommand, "write", 1, 1, 1, NULL},
        {"QA.INDEX.ABORT", QA_INDEX_ABORT_RedisCommand, "write", 1, 1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

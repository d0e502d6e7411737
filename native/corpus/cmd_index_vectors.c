/* QA.INDEX.EMBED stores vectors of passages. QA.INDEX.UNEMBEDDED lists the documents that lack vectors of an encoder.
 * The encoder is a model of the workers, which computes the vectors in the background. docs/inverted-index.md describes
 * the format of the vectors. A QA.INDEX.EMBED that changes the index is replicated verbatim. */
#include "corpus/cmd_index_vectors.h"

#include <stdio.h>

#include "corpus/index_type.h"
#include "corpus/vector_argument.h"
#include "corpus/watched.h"
#include "server/args.h"
#include "server/commands.h"
#include "server/keyspace.h"

/* LIST_STEPS is the maximum number of steps of one call. A step of a listing reads at most one document, which costs up
 * to about 200 ns. */
enum { MAX_LISTED = 1000, LIST_STEPS = 10000, MAX_ERROR = INDEX_PROBLEM + 8 };

/* ---- QA.INDEX.EMBED ---- */

static const char *parse_embedding(RedisModuleString **argv, IndexEmbedding *embedding) {
    long long dims, done, total;
    const char *error = digest_argument(argv[0], &embedding->digest);
    if (error) return error;
    if (!arg_count(argv[1], INDEX_MAX_DIMENSIONS, &dims) || !dims)
        return "ERR number of dimensions must be between 1 and 4096";
    if (!arg_count(argv[2], UINT32_MAX, &done)) return "ERR number of stored passages must be between 0 and 4294967295";
    if (!arg_count(argv[3], UINT32_MAX, &total)) return "ERR total number of passages must be between 0 and 4294967295";
    embedding->dims = (uint32_t)dims;
    embedding->done = (uint32_t)done;
    embedding->total = (uint32_t)total;
    embedding->passages = (const uint8_t *)RedisModule_StringPtrLen(argv[4], &embedding->length);
    return NULL;
}

static int embed(RedisModuleCtx *ctx, RedisModuleString **argv, StoredIndex *stored, const IndexEmbedding *embedding) {
    char problem[INDEX_PROBLEM], line[MAX_ERROR];
    size_t length;
    const char *id = RedisModule_StringPtrLen(argv[2], &length);
    Index *index = stored ? stored->index : stored_index_none();
    uint64_t before = index_next_id(index);
    IndexStatus status = index_embed(index, id, length, embedding, problem);
    if (status == INDEX_MISSING) return RedisModule_ReplyWithLongLong(ctx, 0);
    if (status != INDEX_OK) {
        snprintf(line, sizeof line, "ERR %s", problem);
        return RedisModule_ReplyWithError(ctx, line);
    }
    Watched *watched = before == index_next_id(index) ? NULL : watched_begin(ctx, argv[1]);
    if (watched) index_watch_embedded(watched->watch, index, id, length);
    watched_end(watched, index);
    keyspace_changed(ctx, argv[1], "qa.index.embed");
    RedisModule_ReplicateVerbatim(ctx);
    return RedisModule_ReplyWithLongLong(ctx, 1);
}

/* QA.INDEX.EMBED key document digest dims done total passages */
static int QA_INDEX_EMBED_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 8) return RedisModule_WrongArity(ctx);
    StoredIndex *stored;
    IndexEmbedding embedding;
    const char *error = index_key_peek(ctx, argv[1], &stored);
    if (!error) error = parse_embedding(argv + 3, &embedding);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    return embed(ctx, argv, stored, &embedding);
}

/* ---- QA.INDEX.UNEMBEDDED ---- */

static void list(RedisModuleCtx *ctx, const Index *index, const uint8_t *digest, uint64_t at, size_t count) {
    IndexDocument *documents = RedisModule_Alloc(count * sizeof *documents);
    size_t found = index_unembedded(index, digest, &at, LIST_STEPS, documents, count);
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithLongLong(ctx, (long long)at);
    RedisModule_ReplyWithArray(ctx, (long)found);
    for (size_t i = 0; i < found; i++) RedisModule_ReplyWithStringBuffer(ctx, documents[i].id, documents[i].id_length);
    RedisModule_Free(documents);
}

/* QA.INDEX.UNEMBEDDED key digest cursor count */
static int QA_INDEX_UNEMBEDDED_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 5) return RedisModule_WrongArity(ctx);
    StoredIndex *stored;
    const uint8_t *digest;
    long long at, count;
    const char *error = digest_argument(argv[2], &digest);
    if (!error && !arg_count(argv[3], INT64_MAX, &at)) error = "ERR invalid cursor";
    if (!error && (!arg_count(argv[4], MAX_LISTED, &count) || !count)) error = "ERR count must be between 1 and 1000";
    if (!error) error = index_key_read(ctx, argv[1], &stored);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    list(ctx, stored ? stored->index : stored_index_none(), digest, (uint64_t)at, (size_t)count);
    return REDISMODULE_OK;
}

int index_vectors_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.INDEX.EMBED", QA_INDEX_EMBED_RedisCommand, "write deny-oom", 1, 1, 1, NULL},
        {"QA.INDEX.UNEMBEDDED", QA_INDEX_UNEMBEDDED_RedisCommand, "readonly", 1, 1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

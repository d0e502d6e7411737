/* QA.INDEX.WATCH watches a question whose answer is cached. QA.INDEX.WATCHED says whether a question is still watched.
 * The first write that may change the answer of a question drops the question (index.h). */
#include "corpus/cmd_index_watch.h"

#include <math.h>

#include "corpus/filter_argument.h"
#include "corpus/index_type.h"
#include "corpus/vector_argument.h"
#include "corpus/watched.h"
#include "server/args.h"
#include "server/commands.h"

#define MAX_NUMBER ((1LL << 53) - 1) /* JSON parsers that use doubles read integers up to this number exactly */
#define MAX_DOCUMENT_BYTES 65536
#define MAX_FILTER_BYTES 65536
#define MAX_TTL_MS (366LL * 86400 * 1000)
#define ERR_NAME "ERR the name of a question must have 1 to 256 bytes"

typedef struct Arguments {
    IndexWatched question;
    IndexWatchedTerm terms[INDEX_MAX_QUESTION_TERMS];
    IndexWatchedDocument *documents;
    IndexVector vector;
    long long identity;
    char error[MAX_VECTOR_ERROR];
} Arguments;

static bool parse_name(RedisModuleString *argument, const void **name, size_t *length) {
    *name = RedisModule_StringPtrLen(argument, length);
    return *length && *length <= INDEX_MAX_WATCHED_NAME;
}

static bool get_number(Cursor *cursor, uint64_t *number) {
    long long value;
    if (!cursor_count(cursor, MAX_NUMBER, &value)) return false;
    *number = (uint64_t)value;
    return true;
}

/* Reads the lower and the upper bound of a range. Both bounds are in the range. False: a bound is not a number, or the
 * lower bound is above the upper bound. */
static bool get_range(Cursor *cursor, uint64_t *fewest, uint64_t *most) {
    return get_number(cursor, fewest) && get_number(cursor, most) && *fewest <= *most;
}

/* Reads [FILTER bytes] and checks that the filter is valid. Returns NULL or an error line. */
static const char *parse_filter(Cursor *cursor, IndexWatched *question) {
    const char *error = filter_argument(cursor, &question->filter, &question->filter_length);
    if (error || !question->filter) return error;
    if (question->filter_length > MAX_FILTER_BYTES) return "ERR the filter of a question must have 65536 bytes at most";
    IndexFilter *filter;
    error = filter_compile(question->filter, question->filter_length, &filter);
    filter_free(filter);
    return error;
}

/* Reads TERMS n (term frequency min-frequency max-frequency){n}. Returns NULL or an error line. */
static const char *parse_terms(Cursor *cursor, Arguments *arguments) {
    long long count;
    if (!cursor_accept(cursor, "TERMS")) return "ERR syntax error: TERMS is missing, or in the wrong place";
    if (!cursor_count(cursor, INDEX_MAX_QUESTION_TERMS, &count)) return "ERR number of terms must be between 0 and 32";
    if (cursor->argc - cursor->at < count * 4) return "ERR number of terms does not match the arguments";
    int first = cursor->at;
    for (long long i = 0; i < count; i++) {
        IndexWatchedTerm *term = &arguments->terms[i];
        term->bytes = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &term->length);
        if (!term->length || term->length > INDEX_MAX_TERM) return "ERR a term must have 1 to 256 bytes";
        if (!get_number(cursor, &term->frequency)) return "ERR document frequency must be a number from 0 to 2^53 - 1";
        if (!get_range(cursor, &term->fewest, &term->most))
            return "ERR the bounds of a term must be two ascending numbers from 0 to 2^53 - 1";
        if (arg_comes_twice(cursor->argv, first, 4, first + (int)i * 4)) return "ERR a term comes twice";
    }
    arguments->question.terms = arguments->terms;
    arguments->question.term_count = (size_t)count;
    return NULL;
}

/* Reads DOCUMENTS m (document place){m}. No other argument may follow. Returns NULL or an error line. The caller must
 * free the documents, even after an error. */
static const char *parse_documents(Cursor *cursor, Arguments *arguments) {
    long long count;
    if (!cursor_accept(cursor, "DOCUMENTS")) return "ERR syntax error: DOCUMENTS is missing, or in the wrong place";
    if (!cursor_count(cursor, INDEX_MAX_WATCHED_DOCUMENTS, &count))
        return "ERR number of documents must be between 0 and 1000";
    if (cursor->argc - cursor->at != count * 2) return "ERR number of documents does not match the arguments";
    size_t bytes = 0;
    arguments->documents = RedisModule_Calloc((size_t)count + 1, sizeof *arguments->documents);
    for (long long i = 0; i < count; i++) {
        IndexWatchedDocument *document = &arguments->documents[i];
        document->id = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &document->length);
        if ((bytes += document->length) > MAX_DOCUMENT_BYTES)
            return "ERR the ids of a question's documents must have 65536 bytes at most";
        if (!get_number(cursor, &document->place))
            return "ERR the place of a document must be a number from 0 to 2^53 - 1";
    }
    arguments->question.documents = arguments->documents;
    arguments->question.document_count = (size_t)count;
    return NULL;
}

static const char *parse(Cursor *cursor, Arguments *arguments) {
    IndexWatched *question = &arguments->question;
    long long ttl_ms;
    if (!parse_name(cursor->argv[cursor->at++], &question->name, &question->name_length)) return ERR_NAME;
    if (!cursor_count(cursor, MAX_TTL_MS, &ttl_ms) || !ttl_ms)
        return "ERR time to live must be between 1 and 31622400000 ms";
    question->expires = RedisModule_Milliseconds() + ttl_ms;
    if (!cursor_count(cursor, MAX_NUMBER, &arguments->identity) || !get_number(cursor, &question->since))
        return "ERR identity and next id must come from a reply to QA.INDEX.RANK";
    if (RedisModule_StringToDouble(cursor->argv[cursor->at++], &question->score) != REDISMODULE_OK ||
        !isfinite(question->score))
        return "ERR score must be a number";
    if (!get_number(cursor, &question->sentences)) return "ERR number of sentences must be a number from 0 to 2^53 - 1";
    if (!get_range(cursor, &question->fewest, &question->most))
        return "ERR the bounds of the sentences must be two ascending numbers from 0 to 2^53 - 1";
    bool by_both = false;
    const char *error = parse_filter(cursor, question);
    if (!error) error = vector_argument(cursor, &arguments->vector, &by_both, arguments->error);
    if (by_both) question->vector = &arguments->vector;
    if (!error) error = parse_terms(cursor, arguments);
    return error ? error : parse_documents(cursor, arguments);
}

static void watch(RedisModuleCtx *ctx, RedisModuleString *key, Arguments *arguments) {
    StoredIndex *stored;
    const char *error = index_key_peek(ctx, key, &stored);
    if (!error && stored && arguments->question.vector)
        error = vector_check(stored->index, &arguments->vector, arguments->error);
    if (error) {
        RedisModule_ReplyWithError(ctx, error);
        return;
    }
    uint64_t token = 0;
    if ((stored ? stored->identity : 0) == (uint64_t)arguments->identity)
        token = watched_add(ctx, key, stored ? stored->index : stored_index_none(), &arguments->question);
    RedisModule_ReplyWithLongLong(ctx, (long long)token);
}

/* QA.INDEX.WATCH key name ttl-ms identity next-id score sentences min-sentences max-sentences [FILTER filter] [VECTOR
 * digest weight missing vector] TERMS n (term frequency min-frequency max-frequency){n} DOCUMENTS m (document place){m}
 */
static int QA_INDEX_WATCH_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 14) return RedisModule_WrongArity(ctx);
    if (RedisModule_GetSelectedDb(ctx) != 0)
        return RedisModule_ReplyWithError(ctx, "ERR questions are watched in database 0 only");
    Cursor cursor = {argv, argc, 2};
    Arguments arguments = {0};
    const char *error = parse(&cursor, &arguments);
    if (error) RedisModule_ReplyWithError(ctx, error);
    else watch(ctx, argv[1], &arguments);
    RedisModule_Free(arguments.documents);
    return REDISMODULE_OK;
}

/* QA.INDEX.WATCHED key name */
static int QA_INDEX_WATCHED_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    const void *name;
    size_t length;
    if (argc != 3) return RedisModule_WrongArity(ctx);
    if (!parse_name(argv[2], &name, &length)) return RedisModule_ReplyWithError(ctx, ERR_NAME);
    StoredIndex *stored;
    /* If the key has expired, the server deletes the key here, and the deletion drops the questions of the key. */
    index_key_peek(ctx, argv[1], &stored);
    bool here = RedisModule_GetSelectedDb(ctx) == 0;
    return RedisModule_ReplyWithLongLong(ctx, here ? (long long)watched_token(argv[1], name, length) : 0);
}

int index_watch_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.INDEX.WATCH", QA_INDEX_WATCH_RedisCommand, "readonly deny-oom", 1, 1, 1, NULL},
        {"QA.INDEX.WATCHED", QA_INDEX_WATCHED_RedisCommand, "readonly", 1, 1, 1, NULL},
    };
    if (watched_on_load(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

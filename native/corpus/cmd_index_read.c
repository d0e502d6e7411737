/* QA.INDEX.RANK, QA.INDEX.STATS, QA.INDEX.COMPLETE, QA.INDEX.LIST, QA.INDEX.GET, QA.INDEX.FIELDS, QA.INDEX.VALUES and
 * QA.INDEX.INFO: the commands that read an index. If the key is missing, QA.INDEX.INFO replies with null, and the other
 * commands read an empty index. docs/inverted-index.md describes the arguments and replies. */
#include "corpus/cmd_index_read.h"

#include <math.h>
#include <stdio.h>

#include "corpus/filter_argument.h"
#include "corpus/index_type.h"
#include "corpus/vector_argument.h"
#include "server/args.h"
#include "server/commands.h"
#include "server/pairs.h"

#define MAX_SENTENCES ((1LL << 48) - 1) /* ids have 48 bits */

/* QA.INDEX.COMPLETE reads only the first COMPLETE_STEPS terms, which takes 1 to 2 ms. Frequent terms are usually among
 * the first terms of an index. */
enum { MAX_COMPLETIONS = 100, COMPLETE_STEPS = 250000 };
/* LIST_STEPS and VALUE_STEPS are the maximum numbers of steps of one call. A step of a listing reads at most one
 * document, which costs up to about 200 ns. */
enum { MAX_LISTED = 1000, LIST_STEPS = 10000, VALUE_STEPS = 5000, FIELD_WORDS = 6, MAX_ERROR = 200 };

/* Sets *index to the index of the key, and *identity to its identity (StoredIndex). If the key is missing, sets *index
 * to the shared empty index, and *identity to 0. Returns NULL or an error line. */
static const char *open_stored(RedisModuleCtx *ctx, RedisModuleString *key, Index **index, uint64_t *identity) {
    StoredIndex *stored;
    const char *error = index_key_read(ctx, key, &stored);
    if (error) return error;
    *index = stored ? stored->index : stored_index_none();
    *identity = stored ? stored->identity : 0;
    return NULL;
}

static const char *open_index(RedisModuleCtx *ctx, RedisModuleString *key, Index **index) {
    uint64_t identity;
    return open_stored(ctx, key, index, &identity);
}

/* ---- Arguments ---- */

/* Reads [FILTER bytes] and compiles the filter. Without FILTER, sets *filter to NULL. Returns NULL or an error line.
 * The caller must free *filter, even after an error. */
static const char *parse_filter(Cursor *cursor, IndexFilter **filter) {
    const void *bytes;
    size_t length;
    *filter = NULL;
    const char *error = filter_argument(cursor, &bytes, &length);
    return error || !bytes ? error : filter_compile(bytes, length, filter);
}

typedef struct Terms {
    IndexTerm items[INDEX_MAX_QUESTION_TERMS];
    long long count;
} Terms;

/* Reads TERMS n (term [frequency]){n}. No other argument may follow. Returns NULL or an error line. */
static const char *parse_terms(Cursor *cursor, bool with_frequencies, Terms *terms) {
    int words = with_frequencies ? 2 : 1;
    if (!cursor_accept(cursor, "TERMS")) return "ERR syntax error: TERMS is missing, or in the wrong place";
    if (!cursor_count(cursor, INDEX_MAX_QUESTION_TERMS, &terms->count))
        return "ERR number of terms must be between 0 and 32";
    if (cursor->argc - cursor->at != terms->count * words) return "ERR number of terms does not match the arguments";
    int first = cursor->at;
    for (long long i = 0; i < terms->count; i++) {
        IndexTerm *term = &terms->items[i];
        long long frequency = 0;
        term->bytes = RedisModule_StringPtrLen(cursor->argv[cursor->at++], &term->length);
        if (with_frequencies && !cursor_count(cursor, MAX_SENTENCES, &frequency))
            return "ERR document frequency must be between 0 and 281474976710655";
        if (arg_comes_twice(cursor->argv, first, words, first + (int)i * words)) return "ERR a term comes twice";
        term->frequency = (uint64_t)frequency;
    }
    return NULL;
}

/* ---- QA.INDEX.RANK, QA.INDEX.STATS ---- */

static void reply_statistics(RedisModuleCtx *ctx, const IndexRanking *ranking, long long terms) {
    RedisModule_ReplyWithLongLong(ctx, (long long)ranking->sentences);
    RedisModule_ReplyWithLongLong(ctx, (long long)ranking->terms);
    RedisModule_ReplyWithArray(ctx, terms);
    for (long long i = 0; i < terms; i++) RedisModule_ReplyWithLongLong(ctx, (long long)ranking->frequencies[i]);
}

static void reply_hits(RedisModuleCtx *ctx, const IndexRanking *ranking, long long terms) {
    RedisModule_ReplyWithArray(ctx, (long)ranking->count);
    for (size_t i = 0; i < ranking->count; i++) {
        const IndexHit *hit = &ranking->hits[i];
        RedisModule_ReplyWithArray(ctx, 4);
        RedisModule_ReplyWithStringBuffer(ctx, hit->document, hit->document_length);
        RedisModule_ReplyWithLongLong(ctx, hit->sentence);
        RedisModule_ReplyWithDouble(ctx, hit->score);
        RedisModule_ReplyWithArray(ctx, terms);
        for (long long j = 0; j < terms; j++)
            RedisModule_ReplyWithDouble(ctx, ranking->weights[i * (size_t)terms + (size_t)j]);
    }
}

/* Replies with the arguments that QA.INDEX.WATCH needs: the identity and the next id of the ranked index, and the
 * places of the documents. */
static void reply_state(RedisModuleCtx *ctx, const Index *index, uint64_t identity, const IndexRanking *ranking) {
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithLongLong(ctx, (long long)identity);
    RedisModule_ReplyWithLongLong(ctx, (long long)index_next_id(index));
    RedisModule_ReplyWithArray(ctx, (long)ranking->count);
    for (size_t i = 0; i < ranking->count; i++) RedisModule_ReplyWithLongLong(ctx, (long long)ranking->hits[i].place);
}

/* Replies with the cosine and the passage of each hit. */
static void reply_passages(RedisModuleCtx *ctx, const IndexRanking *ranking) {
    RedisModule_ReplyWithArray(ctx, (long)ranking->count);
    for (size_t i = 0; i < ranking->count; i++) {
        const IndexHit *hit = &ranking->hits[i];
        RedisModule_ReplyWithArray(ctx, 3);
        if (isnan(hit->cosine)) RedisModule_ReplyWithNull(ctx);
        else RedisModule_ReplyWithDouble(ctx, hit->cosine);
        RedisModule_ReplyWithLongLong(ctx, hit->passage);
        RedisModule_ReplyWithLongLong(ctx, hit->passage_sentences);
    }
}

/* Ranks and replies. The caller has checked the arguments, so index_rank() accepts the query. */
static void rank(RedisModuleCtx *ctx, Index *index, uint64_t identity, const IndexQuery *query) {
    uint64_t frequencies[INDEX_MAX_QUESTION_TERMS];
    IndexRanking ranking = {.frequencies = frequencies};
    ranking.hits = RedisModule_Alloc((query->k + 1) * sizeof *ranking.hits);
    ranking.weights = RedisModule_Alloc((query->k * query->count + 1) * sizeof *ranking.weights);
    index_rank(index, query, &ranking);
    RedisModule_ReplyWithArray(ctx, query->vector ? 7 : 6);
    reply_statistics(ctx, &ranking, (long long)query->count);
    reply_hits(ctx, &ranking, (long long)query->count);
    reply_state(ctx, index, identity, &ranking);
    if (query->vector) reply_passages(ctx, &ranking);
    RedisModule_Free(ranking.weights);
    RedisModule_Free(ranking.hits);
}

typedef struct Ranked {
    IndexQuery query;
    IndexVector vector;
    IndexFilter *filter; /* the caller frees it, even after an error */
    Terms terms;
    char error[MAX_VECTOR_ERROR];
} Ranked;

static const char *parse_rank(Cursor *cursor, Ranked *ranked) {
    long long k, sentences;
    bool by_both;
    ranked->filter = NULL;
    if (!cursor_count(cursor, INDEX_MAX_HITS, &k)) return "ERR k must be between 0 and 1000";
    if (!cursor_count(cursor, MAX_SENTENCES, &sentences))
        return "ERR number of sentences must be between 0 and 281474976710655";
    const char *error = parse_filter(cursor, &ranked->filter);
    if (!error) error = vector_argument(cursor, &ranked->vector, &by_both, ranked->error);
    if (error) return error;
    bool distinct = cursor_accept(cursor, "DISTINCT");
    if (distinct && !by_both) return "ERR DISTINCT needs VECTOR before it";
    error = parse_terms(cursor, true, &ranked->terms);
    ranked->query = (IndexQuery){.terms = ranked->terms.items,
                                 .count = (size_t)ranked->terms.count,
                                 .k = (size_t)k,
                                 .global = sentences > 0,
                                 .sentences = (uint64_t)sentences,
                                 .filter = ranked->filter,
                                 .vector = by_both ? &ranked->vector : NULL,
                                 .distinct = distinct};
    return error;
}

static const char *check_dimensions(const Index *index, Ranked *ranked) {
    return ranked->query.vector ? vector_check(index, &ranked->vector, ranked->error) : NULL;
}

/* QA.INDEX.RANK key k sentences [FILTER filter] [VECTOR digest weight missing vector] [DISTINCT] TERMS n (term
 * frequency){n} */
static int QA_INDEX_RANK_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 6) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 2};
    Index *index;
    uint64_t identity;
    Ranked ranked;
    const char *error = parse_rank(&cursor, &ranked);
    if (!error) error = open_stored(ctx, argv[1], &index, &identity);
    if (!error) error = check_dimensions(index, &ranked);
    if (error) RedisModule_ReplyWithError(ctx, error);
    else rank(ctx, index, identity, &ranked.query);
    filter_free(ranked.filter);
    return REDISMODULE_OK;
}

/* QA.INDEX.STATS key TERMS n term{n} */
static int QA_INDEX_STATS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 2};
    Index *index;
    Terms terms;
    const char *error = parse_terms(&cursor, false, &terms);
    if (!error) error = open_index(ctx, argv[1], &index);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    uint64_t frequencies[INDEX_MAX_QUESTION_TERMS];
    IndexQuery query = {.terms = terms.items, .count = (size_t)terms.count};
    IndexRanking ranking = {.frequencies = frequencies};
    index_rank(index, &query, &ranking);
    RedisModule_ReplyWithArray(ctx, 3);
    reply_statistics(ctx, &ranking, terms.count);
    return REDISMODULE_OK;
}

/* ---- QA.INDEX.COMPLETE ---- */

/* QA.INDEX.COMPLETE key prefix count */
static int QA_INDEX_COMPLETE_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 4) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 3};
    Index *index;
    long long count;
    size_t length;
    const char *prefix = RedisModule_StringPtrLen(argv[2], &length), *error = NULL;
    if (!length || length > INDEX_MAX_TERM) error = "ERR prefix must have 1 to 256 bytes";
    else if (!cursor_count(&cursor, MAX_COMPLETIONS, &count) || !count) error = "ERR count must be between 1 and 100";
    if (!error) error = open_index(ctx, argv[1], &index);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    IndexCompletion completions[MAX_COMPLETIONS];
    bool all;
    size_t found = index_complete(index, prefix, length, COMPLETE_STEPS, completions, (size_t)count, &all);
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithLongLong(ctx, all);
    RedisModule_ReplyWithArray(ctx, (long)(2 * found));
    for (size_t i = 0; i < found; i++) {
        RedisModule_ReplyWithStringBuffer(ctx, completions[i].bytes, completions[i].length);
        RedisModule_ReplyWithLongLong(ctx, (long long)completions[i].frequency);
    }
    return REDISMODULE_OK;
}

/* ---- QA.INDEX.LIST, QA.INDEX.GET ---- */

static void list(RedisModuleCtx *ctx, Index *index, uint64_t at, size_t count, const IndexFilter *filter) {
    IndexDocument *documents = RedisModule_Alloc((count + 1) * sizeof *documents);
    size_t found = index_list(index, &at, filter, LIST_STEPS, documents, count);
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithLongLong(ctx, (long long)at);
    RedisModule_ReplyWithArray(ctx, (long)found);
    for (size_t i = 0; i < found; i++) {
        RedisModule_ReplyWithArray(ctx, 3);
        RedisModule_ReplyWithStringBuffer(ctx, documents[i].id, documents[i].id_length);
        RedisModule_ReplyWithLongLong(ctx, documents[i].sentences);
        RedisModule_ReplyWithLongLong(ctx, (long long)documents[i].terms);
    }
    RedisModule_Free(documents);
}

static const char *parse_list(Cursor *cursor, long long *at, long long *count, IndexFilter **filter) {
    *filter = NULL;
    if (!cursor_count(cursor, INT64_MAX, at)) return "ERR invalid cursor";
    if (!cursor_count(cursor, MAX_LISTED, count) || !*count) return "ERR count must be between 1 and 1000";
    const char *error = parse_filter(cursor, filter);
    return !error && cursor->at != cursor->argc ? "ERR syntax error: only FILTER may follow" : error;
}

/* QA.INDEX.LIST key cursor count [FILTER filter] */
static int QA_INDEX_LIST_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 2};
    Index *index;
    IndexFilter *filter;
    long long at, count;
    const char *error = parse_list(&cursor, &at, &count, &filter);
    if (!error) error = open_index(ctx, argv[1], &index);
    if (error) RedisModule_ReplyWithError(ctx, error);
    else list(ctx, index, (uint64_t)at, (size_t)count, filter);
    filter_free(filter);
    return REDISMODULE_OK;
}

/* QA.INDEX.GET key document */
static int QA_INDEX_GET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3) return RedisModule_WrongArity(ctx);
    Index *index;
    IndexDocument document;
    const char *error = open_index(ctx, argv[1], &index);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    size_t length;
    const char *id = RedisModule_StringPtrLen(argv[2], &length);
    if (index_get(index, id, length, &document) != INDEX_OK) return RedisModule_ReplyWithNull(ctx);
    RedisModule_ReplyWithArray(ctx, 3);
    RedisModule_ReplyWithLongLong(ctx, document.sentences);
    RedisModule_ReplyWithLongLong(ctx, (long long)document.terms);
    return RedisModule_ReplyWithStringBuffer(ctx, document.fields, document.fields_length);
}

/* ---- QA.INDEX.INFO ---- */

/* Replies with an array that has one element for each encoder whose vectors are in the index. */
static void reply_encoders(RedisModuleCtx *ctx, const Index *index) {
    IndexEncoder encoders[INDEX_MAX_ENCODERS];
    size_t count = index_encoders(index, encoders);
    RedisModule_ReplyWithArray(ctx, (long)count);
    for (size_t i = 0; i < count; i++) {
        RedisModule_ReplyWithArray(ctx, 10);
        RedisModule_ReplyWithCString(ctx, "digest");
        RedisModule_ReplyWithStringBuffer(ctx, (const char *)encoders[i].digest, INDEX_DIGEST);
        pair_number(ctx, "dimensions", encoders[i].dims);
        pair_number(ctx, "documents", (long long)encoders[i].documents);
        pair_number(ctx, "passages", (long long)encoders[i].passages);
        pair_number(ctx, "bytes", (long long)encoders[i].bytes);
    }
}

/* QA.INDEX.INFO key */
static int QA_INDEX_INFO_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2) return RedisModule_WrongArity(ctx);
    Index *index;
    const char *error = open_index(ctx, argv[1], &index);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (index == stored_index_none()) return RedisModule_ReplyWithNull(ctx);
    IndexCounts counts = index_counts(index);
    RedisModule_ReplyWithArray(ctx, 22);
    pair_number(ctx, "documents", (long long)counts.documents);
    pair_number(ctx, "sentences", (long long)counts.sentences);
    pair_number(ctx, "terms", (long long)counts.terms);
    pair_number(ctx, "distinct_terms", (long long)counts.distinct_terms);
    pair_number(ctx, "postings", (long long)counts.postings);
    pair_number(ctx, "dead_postings", (long long)counts.dead_postings);
    pair_number(ctx, "open_documents", (long long)counts.open_documents);
    pair_number(ctx, "bytes", (long long)counts.bytes);
    pair_number(ctx, "document_id_bytes", (long long)counts.document_id_bytes);
    pair_number(ctx, "filled_documents", (long long)counts.filled_documents);
    RedisModule_ReplyWithCString(ctx, "vectors");
    reply_encoders(ctx, index);
    return REDISMODULE_OK;
}

/* ---- QA.INDEX.FIELDS ---- */

static void reply_fields(RedisModuleCtx *ctx, const Index *index, uint64_t at, size_t count) {
    IndexField *fields = RedisModule_Alloc((count + 1) * sizeof *fields);
    size_t found = index_fields(index, &at, fields, count);
    RedisModule_ReplyWithArray(ctx, 2);
    RedisModule_ReplyWithLongLong(ctx, (long long)at);
    RedisModule_ReplyWithArray(ctx, (long)found);
    for (size_t i = 0; i < found; i++) {
        const IndexField *field = &fields[i];
        RedisModule_ReplyWithArray(ctx, FIELD_WORDS);
        RedisModule_ReplyWithStringBuffer(ctx, field->name, field->length);
        RedisModule_ReplyWithLongLong(ctx, (long long)field->documents);
        RedisModule_ReplyWithLongLong(ctx, (long long)field->booleans);
        RedisModule_ReplyWithLongLong(ctx, (long long)field->numbers);
        RedisModule_ReplyWithLongLong(ctx, (long long)field->texts);
        RedisModule_ReplyWithLongLong(ctx, (long long)field->times);
    }
    RedisModule_Free(fields);
}

/* Two forms: QA.INDEX.FIELDS key SCAN cursor count, and QA.INDEX.FIELDS key NAMES name+ */
static int QA_INDEX_FIELDS_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 2};
    Index *index;
    long long at = 0, count = 0;
    const char *error = NULL;
    bool named = cursor_accept(&cursor, "NAMES");
    if (!named) {
        if (!cursor_accept(&cursor, "SCAN")) error = "ERR syntax error: SCAN or NAMES must follow the key";
        else if (!cursor_count(&cursor, UINT32_MAX, &at)) error = "ERR invalid cursor";
        else if (!cursor_count(&cursor, MAX_LISTED, &count) || !count) error = "ERR count must be between 1 and 1000";
        else if (cursor.at != argc) error = "ERR syntax error: nothing may follow the count";
    }
    if (!error) error = open_index(ctx, argv[1], &index);
    if (error) return RedisModule_ReplyWithError(ctx, error);
    if (!named) {
        reply_fields(ctx, index, (uint64_t)at, (size_t)count);
        return REDISMODULE_OK;
    }
    RedisModule_ReplyWithArray(ctx, argc - cursor.at);
    for (int i = cursor.at; i < argc; i++) {
        size_t length;
        const char *name = RedisModule_StringPtrLen(argv[i], &length);
        RedisModule_ReplyWithLongLong(ctx, (long long)index_field_documents(index, name, length));
    }
    return REDISMODULE_OK;
}

/* ---- QA.INDEX.VALUES ---- */

static void reply_values(RedisModuleCtx *ctx, Index *index, uint64_t at, RedisModuleString *field,
                         const IndexFilter *filter) {
    size_t length;
    const char *name = RedisModule_StringPtrLen(field, &length);
    IndexValue *values = RedisModule_Alloc(INDEX_MAX_VALUES * sizeof *values);
    IndexValueTotals totals;
    size_t found = index_values(index, &at, name, length, filter, VALUE_STEPS, values, &totals);
    RedisModule_ReplyWithArray(ctx, 4);
    RedisModule_ReplyWithLongLong(ctx, (long long)at);
    RedisModule_ReplyWithLongLong(ctx, (long long)totals.documents);
    RedisModule_ReplyWithLongLong(ctx, (long long)totals.with_field);
    RedisModule_ReplyWithArray(ctx, (long)(2 * found));
    for (size_t i = 0; i < found; i++) {
        RedisModule_ReplyWithStringBuffer(ctx, values[i].value, values[i].length);
        RedisModule_ReplyWithLongLong(ctx, (long long)values[i].documents);
    }
    RedisModule_Free(values);
}

/* QA.INDEX.VALUES key cursor field [FILTER filter] */
static int QA_INDEX_VALUES_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 4) return RedisModule_WrongArity(ctx);
    Cursor cursor = {argv, argc, 2};
    Index *index;
    IndexFilter *filter = NULL;
    long long at;
    size_t length, filter_length;
    const void *bytes = NULL;
    const char *error = NULL;
    RedisModule_StringPtrLen(argv[3], &length);
    if (!cursor_count(&cursor, INT64_MAX, &at)) error = "ERR invalid cursor";
    else if (!length || length > UINT8_MAX) error = "ERR the name of a field must have 1 to 255 bytes";
    cursor.at = 4;
    if (!error) error = filter_argument(&cursor, &bytes, &filter_length);
    if (!error && cursor.at != argc) error = "ERR syntax error: only FILTER may follow";
    if (!error && bytes) error = filter_compile(bytes, filter_length, &filter);
    if (!error) error = open_index(ctx, argv[1], &index);
    if (error) RedisModule_ReplyWithError(ctx, error);
    else reply_values(ctx, index, (uint64_t)at, argv[3], filter);
    filter_free(filter);
    return REDISMODULE_OK;
}

int index_read_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"QA.INDEX.RANK", QA_INDEX_RANK_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.STATS", QA_INDEX_STATS_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.COMPLETE", QA_INDEX_COMPLETE_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.LIST", QA_INDEX_LIST_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.FIELDS", QA_INDEX_FIELDS_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.VALUES", QA_INDEX_VALUES_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.GET", QA_INDEX_GET_RedisCommand, "readonly", 1, 1, 1, NULL},
        {"QA.INDEX.INFO", QA_INDEX_INFO_RedisCommand, "readonly", 1, 1, 1, NULL},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

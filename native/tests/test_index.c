/* Tests of the public functions of the index, with sanitizers. tests/index compares the rankings of the index with an
 * oracle: Python code that scores every sentence. */
#include <math.h>
#include <string.h>

#include "tests/index_check.h"

static IndexPending *begin(Index *index, const char *id) {
    IndexPending *pending;
    CHECK(index_begin(index, id, strlen(id), NULL, 0, &pending) == INDEX_OK);
    return pending;
}

/* Returns the number of sentences that a ranking finds for the term. Sets *frequency to the term's document frequency,
 * and *best to the best hit if `best` is not NULL and there is a hit. */
static size_t ask(Index *index, const char *text, uint64_t *frequency, IndexHit *best) {
    static IndexHit hits[INDEX_MAX_HITS];
    static double weights[INDEX_MAX_HITS];
    IndexTerm term = {text, strlen(text), 0};
    IndexQuery query = {.terms = &term, .count = 1, .k = INDEX_MAX_HITS};
    IndexRanking ranking = {.hits = hits, .weights = weights, .frequencies = frequency};
    CHECK(index_rank(index, &query, &ranking) == INDEX_OK);
    if (best && ranking.count) *best = hits[0];
    return ranking.count;
}

static void test_a_document_is_found_when_it_is_committed(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    uint64_t frequency;
    IndexHit hit;
    IndexPending *pending = begin(index, "a");
    CHECK(add(pending, "apple pear") == INDEX_OK);
    CHECK(add(pending, "pear") == INDEX_OK);
    CHECK(ask(index, "pear", &frequency, NULL) == 0 && frequency == 0 && index_counts(index).sentences == 0);
    CHECK(index_commit(pending) == INDEX_OK);
    CHECK(ask(index, "pear", &frequency, &hit) == 2 && frequency == 2);
    CHECK(hit.document_length == 1 && hit.sentence == 1 && hit.score > 0); /* the shorter sentence is best */
    IndexPending *other = begin(index, "b");
    CHECK(add(other, "pear") == INDEX_OK);
    index_abort(other);
    CHECK(ask(index, "pear", &frequency, NULL) == 2 && frequency == 2);
    CHECK(index_remove(index, "a", 1) == INDEX_OK && index_remove(index, "a", 1) == INDEX_MISSING);
    CHECK(ask(index, "pear", &frequency, NULL) == 0 && frequency == 0 && index_counts(index).terms == 0);
    CHECK(index_memory(index) == held);
    index_free(index);
    CHECK(held == 0);
}

static void test_a_score_is_the_formula(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    IndexPending *pending = begin(index, "a");
    CHECK(add(pending, "apple pear") == INDEX_OK);
    CHECK(index_commit(pending) == INDEX_OK);
    IndexTerm terms[2] = {{"apple", 5, 10}, {"pear", 4, 200}};
    IndexHit hit;
    double weights[2];
    uint64_t frequencies[2];
    IndexQuery query = {.terms = terms, .count = 2, .k = 1, .global = true, .sentences = 100};
    IndexRanking ranking = {.hits = &hit, .weights = weights, .frequencies = frequencies};
    CHECK(index_rank(index, &query, &ranking) == INDEX_OK && ranking.count == 1);
    double weight = 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 15));
    CHECK(fabs(weights[0] / weight - 1) < 0.0095 && weights[0] == weights[1]);
    double a = weights[0] * log1p(90.5 / 10.5), b = weights[1] * log1p(0.5 / 100.5);
    CHECK(fabs(hit.score - (a + b + 0.3 * sqrt(a * b))) < 1e-12);
    index_free(index);
}

static void test_arguments_are_checked(void) {
    static char long_id[INDEX_MAX_DOCUMENT_ID + 1];
    Index *index = index_new(ALLOCATOR, KEY);
    IndexPending *pending;
    CHECK(index_begin(index, "", 0, NULL, 0, &pending) == INDEX_INVALID);
    CHECK(index_begin(index, long_id, sizeof long_id, NULL, 0, &pending) == INDEX_INVALID);
    CHECK(index_begin(index, long_id, INDEX_MAX_DOCUMENT_ID, NULL, 0, &pending) == INDEX_OK);
    CHECK(index_commit(pending) == INDEX_OK);
    CHECK(index_begin(index, "a", 1, "\1", 1, &pending) == INDEX_INVALID);
    CHECK(index_begin(index, "a", 1, "\1\0\1f\1\0b\2", 8, &pending) == INDEX_INVALID);      /* a boolean of 2 */
    CHECK(index_begin(index, "a", 1, "\2\0\1f\0\0\1f\0\0", 10, &pending) == INDEX_INVALID); /* a name twice */
    IndexTerm terms[33] = {{"pear", 4, 0}};
    uint64_t frequencies[33];
    IndexRanking ranking = {.frequencies = frequencies};
    CHECK(index_rank(index, &(IndexQuery){.terms = terms, .count = 33, .k = 1}, &ranking) == INDEX_INVALID);
    CHECK(index_rank(index, &(IndexQuery){.terms = terms, .count = 1, .k = 1001}, &ranking) == INDEX_INVALID);
    index_free(index);
    CHECK(held == 0);
}

static void test_filters_are_checked(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    static const struct {
        const char *bytes;
        size_t length;
        bool valid;
    } FILTERS[] = {
        {"=\1fb\1", 5, true},
        {"=\1fb\2", 5, false},
        {"=\1fb\1x", 6, false},
        {"", 0, false},
        {"?", 1, false},
        {"&\0\0", 3, true},
        {"&\1\0", 3, false},
        {"!=\1fb\1", 6, true},
        {"<\1fb\1", 5, false},
        {"<\1fs\0\0", 6, false},
        {"=\0s\1\0a", 6, true},
        {"=\0b\1", 4, false},
        {"i\1f\0\0\0\0", 7, true},
        {"i\1f\xff\xff\xff\xff", 7, false},
        {"i\1f\1\0\0\0", 7, false},
        {"=\1fn\0\0\0\0\0\0\xf8\x7f", 12, false}, /* NaN */
        {"<\1ft\0\0\0\0\0\0\0\x80", 12, true},
        {"z\1f", 3, true},
        {"!e\3f.g", 6, true},
        {"z\0", 2, false},
        {"e\2f", 3, false},
        {"e", 1, false},
        {"e\1fb\1", 5, false},
    };
    for (size_t i = 0; i < sizeof FILTERS / sizeof *FILTERS; i++) {
        IndexFilter *filter = index_filter_new(index, FILTERS[i].bytes, FILTERS[i].length);
        CHECK((filter != NULL) == FILTERS[i].valid);
        index_filter_free(index, filter);
    }
    char deep[64];
    for (int depth = 31; depth <= 32; depth++) {
        memset(deep, '!', 64);
        memcpy(deep + depth, "=\1fb\1", 5);
        IndexFilter *filter = index_filter_new(index, deep, (size_t)depth + 5);
        CHECK((filter != NULL) == (depth < INDEX_MAX_FILTER_DEPTH));
        index_filter_free(index, filter);
    }
    char many[3 + 256 * 3] = "&\xff";
    for (unsigned nodes = 256; nodes <= 257; nodes++) {
        many[1] = (char)((nodes - 1) & 0xff);
        many[2] = (char)((nodes - 1) >> 8);
        for (unsigned i = 0; i < nodes - 1; i++) memcpy(many + 3 + i * 3, "&\0\0", 3);
        IndexFilter *filter = index_filter_new(index, many, 3 + (nodes - 1) * 3);
        CHECK((filter != NULL) == (nodes <= INDEX_MAX_FILTER_NODES));
        index_filter_free(index, filter);
    }
    CHECK(index_memory(index) == held);
    index_free(index);
}

static void test_a_cursor_survives_changes(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    IndexDocument found[2];
    uint64_t cursor = 0;
    for (char id[2] = "a"; *id <= 'f'; ++*id) CHECK(index_commit(begin(index, id)) == INDEX_OK);
    CHECK(index_list(index, &cursor, NULL, 100, found, 2) == 2 && *(const char *)found[1].id == 'b');
    CHECK(index_remove(index, "b", 1) == INDEX_OK && index_remove(index, "c", 1) == INDEX_OK);
    CHECK(index_commit(begin(index, "b")) == INDEX_OK); /* a document that is written again moves to the end */
    CHECK(index_list(index, &cursor, NULL, 100, found, 2) == 2 && *(const char *)found[0].id == 'd');
    CHECK(index_list(index, &cursor, NULL, 1, found, 2) == 1 && *(const char *)found[0].id == 'f' && cursor);
    CHECK(index_list(index, &cursor, NULL, 100, found, 2) == 1 && *(const char *)found[0].id == 'b' && !cursor);
    index_free(index);
}

/* The document of this test has more distinct terms than one call counts. Rankings find the whole document at once. The
 * document frequencies of its terms change in steps. */
static void test_frequencies_of_a_huge_document_follow_in_steps(void) {
    enum { TERMS = 20000 };
    Index *index = index_new(ALLOCATOR, KEY);
    IndexPending *pending = begin(index, "huge");
    uint64_t frequency;
    char text[16];
    for (int i = 0; i < TERMS; i++) {
        snprintf(text, sizeof text, "t%d", i);
        CHECK(add(pending, text) == INDEX_OK);
    }
    CHECK(index_commit(pending) == INDEX_OK);
    CHECK(index_counts(index).sentences == TERMS);
    CHECK(ask(index, "t0", &frequency, NULL) == 1 && frequency == 1);
    CHECK(ask(index, text, &frequency, NULL) == 1 && frequency == 0);
    CHECK(index_remove(index, "huge", 4) == INDEX_OK); /* not all of its terms are counted yet */
    CHECK(index_counts(index).sentences == 0 && ask(index, text, &frequency, NULL) == 0);
    int steps = 0;
    while (index_maintain(index, 500)) steps++;
    /* Removing a term from the dictionary costs 10 units of the budget for its hash, and more for the hashes of its
     * neighbors. */
    CHECK(steps > (2 * (TERMS - 2 * 4096) + 10 * TERMS) / 500);
    for (int i = 0; i < TERMS; i++) {
        snprintf(text, sizeof text, "t%d", i);
        CHECK(ask(index, text, &frequency, NULL) == 0 && frequency == 0);
    }
    IndexCounts counts = index_counts(index);
    CHECK(counts.postings == 0 && counts.dead_postings == 0 && counts.distinct_terms == 0);
    index_free(index);
    CHECK(held == 0);
}

/* The index does not grow while its documents change their words repeatedly. */
static void test_what_is_gone_leaves_no_memory(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    size_t after[8];
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 3000; i++) {
            char id[16], text[32];
            snprintf(id, sizeof id, "d%d", i);
            if (round) CHECK(index_remove(index, id, strlen(id)) == INDEX_OK);
            IndexPending *pending = begin(index, id);
            snprintf(text, sizeof text, "%dx%d common", round, i);
            CHECK(add(pending, text) == INDEX_OK);
            CHECK(index_commit(pending) == INDEX_OK);
            index_maintain(index, 200);
        }
        while (index_maintain(index, 1000)) {
        }
        after[round] = index_memory(index);
        CHECK(index_memory(index) == held);
    }
    CHECK(after[7] < after[1] + after[1] / 5);
    for (int i = 0; i < 3000; i++) {
        char id[16];
        snprintf(id, sizeof id, "d%d", i);
        CHECK(index_remove(index, id, strlen(id)) == INDEX_OK);
    }
    while (index_maintain(index, 1000)) {
    }
    uint64_t frequency;
    CHECK(ask(index, "common", &frequency, NULL) == 0 && frequency == 0);
    CHECK(index_counts(index).postings < 64); /* if fewer than 64 postings are dead, index_maintain removes none */
    index_free(index);
    CHECK(held == 0);
}

static void test_completions_are_the_most_frequent_terms(void) {
    Index *index = index_new(ALLOCATOR, KEY);
    IndexCompletion found[3];
    bool all;
    CHECK(index_complete(index, "a", 1, 100, found, 3, &all) == 0 && all);
    IndexPending *pending = begin(index, "d");
    CHECK(add(pending, "apple apply") == INDEX_OK);
    CHECK(add(pending, "apple ape") == INDEX_OK);
    CHECK(add(pending, "app banana") == INDEX_OK);
    CHECK(add(pending, "app apply") == INDEX_OK);
    CHECK(index_commit(pending) == INDEX_OK);
    CHECK(index_complete(index, "app", 3, 100, found, 3, &all) == 3 && all);
    /* Terms with equal frequencies are in the order of their bytes. */
    CHECK(found[0].length == 3 && found[0].frequency == 2 && memcmp(found[0].bytes, "app", 3) == 0);
    CHECK(memcmp(found[1].bytes, "apple", 5) == 0 && memcmp(found[2].bytes, "apply", 5) == 0);
    CHECK(index_complete(index, "ap", 2, 100, found, 1, &all) == 1 && found[0].length == 3);
    CHECK(index_complete(index, "a", 1, 1, found, 3, &all) == 1 && !all); /* reads only the first term */
    CHECK(index_complete(index, "applepie", 8, 100, found, 3, &all) == 0);
    CHECK(index_remove(index, "d", 1) == INDEX_OK);
    CHECK(index_complete(index, "a", 1, 100, found, 3, &all) == 0);
    index_free(index);
    CHECK(held == 0);
}

int main(void) {
    test_a_document_is_found_when_it_is_committed();
    test_a_score_is_the_formula();
    test_arguments_are_checked();
    test_filters_are_checked();
    test_a_cursor_survives_changes();
    test_frequencies_of_a_huge_document_follow_in_steps();
    test_completions_are_the_most_frequent_terms();
    test_what_is_gone_leaves_no_memory();
    return 0;
}

/* The best sentences for a question: exact top k by block-max MaxScore, in windows of ids. index.h defines posting,
 * code, passage and edges. A hit is a sentence that is among the k best sentences so far. The threshold is the score
 * that a new hit must exceed: with k hits, the score of the worst hit.
 *
 * BOUNDS. A score is sum + EDGES * (roots^2 - sum), with EDGES below 1 (codes.h), so the score grows with every weight.
 * Therefore upper bounds of the weights of a sentence give an upper bound of its score. The search sorts the terms by
 * the highest contribution that each term can make to a score. The terms with the lowest contributions are not
 * essential if all of them together cannot lift a sentence above the threshold. Every new hit must contain one of the
 * other terms, the essential terms.
 *
 * WINDOWS. The search divides the ids into windows of WINDOW ids. In each window it finds the essential terms, from the
 * highest codes of the blocks that overlap the window. Often no term is essential. Then the search skips the window and
 * decodes no block. If there are essential terms, the search writes their codes into rows, one row for each id. Sums in
 * floats show which rows can still become hits. The search completes these rows with the codes of the terms that are
 * not essential, the term with the highest contribution first. The search discards a row when the remaining terms
 * cannot lift the row above the threshold.
 *
 * MEANING. With a vector, a score has one more summand: the contribution of the cosine of the passage. The cosines of
 * all passages are computed before the search (meaning.c). The first hits are the first sentences of the passages with
 * the highest cosines. Then the search reads the windows as without a vector. But it adds the maximum contribution of
 * the passages in the window to the bounds. A first hit has no score by words yet. When the search finds the same
 * sentence by its words, the search replaces the first hit with the sentence and its full score. If the query is
 * `distinct`, a better sentence of the same passage also replaces the hit.
 *
 * EXACTNESS. A bound is a sum in a different order from the score, so its rounding differs. SAFETY raises every bound
 * by more than the possible rounding error. The score itself is always a sum in the order of the query's terms, from
 * tables, and is the same on every machine. */
#include "index/structure.h"

#include <math.h>
#include <stdlib.h>

#include "index/codes.h"
#include "index/dictionary.h"
#include "index/filter.h"
#include "index/meaning.h"
#include "index/memory.h"
#include "index/postings.h"
#include "index/runs.h"
#include "index/vectors.h"

/* To look up one id in the postings of a term costs about as much as to read LOOKUP_POSTINGS postings. */
enum { WINDOW = 2048, LOOKUP_POSTINGS = 24, NOT_DECODED = 0xffffffff };

static const float COARSE_SAFETY = 1 + 1e-5f; /* has the purpose of SAFETY (codes.h), for sums of floats */

/* The codes and sums of one id of the window. A row has a code for each of the query's terms. The number of codes is
 * rounded up to 8, 16 or 32 (`stride` of Ranker). */
typedef struct Row {
    float sum, roots;
    uint8_t codes[];
} Row;

/* A position in the postings of one term of the query. */
typedef struct Cursor {
    View view;
    uint32_t block;   /* the first block that may contain the current id or a higher id */
    uint32_t decoded; /* the number of the block in `at` */
    uint32_t position;
    unsigned column; /* the position of the term in the query */
    double idf, root_idf;
    double most, most_root;      /* the highest weight * idf of all postings, and its root */
    uint8_t window_max;          /* an upper bound of the codes in the window */
    uint32_t window_blocks;      /* the number of blocks that overlap the window */
    float sums[256], roots[256]; /* weight * idf of each code, and its root, for the sums of the rows */
    Decoded at;
} Cursor;

typedef struct Hit {
    double score; /* the score that orders the hits: by words, plus the contribution of meaning */
    uint64_t id;
    uint32_t row : 31;       /* the row of its codes in `hit_rows` */
    uint32_t by_meaning : 1; /* 1: a first hit, so the score has only the contribution of meaning */
    uint32_t span;           /* the first span (meaning.h) of its passage; NO_SPAN: the sentence has no passage, or the
                              * query has no vector */
} Hit;

typedef struct Range {
    uint64_t first, end;
} Range;

typedef struct Ranker {
    Index *index;
    const IndexFilter *filter;
    uint64_t since;
    bool open;
    Cursor *cursors[INDEX_MAX_QUESTION_TERMS];                                /* ascending by `most` */
    double idf[INDEX_MAX_QUESTION_TERMS], root_idf[INDEX_MAX_QUESTION_TERMS]; /* by column */
    /* Item i: the highest sum (and sum of roots) that the first i cursors can give to a sentence of this window. */
    double sums[INDEX_MAX_QUESTION_TERMS + 1], roots[INDEX_MAX_QUESTION_TERMS + 1];
    unsigned count, essential; /* the number of cursors; the first essential cursor in this window */
    size_t stride;             /* the number of codes of a row */
    /* A new hit needs a score above the threshold. With k hits, the threshold is the score of the worst hit. With a
     * vector, the threshold is slightly below this score, because a new hit with an equal score and a lower id wins. */
    double threshold;
    Meaning *meaning;    /* NULL: no vector */
    double most_meaning; /* the maximum contribution of meaning in this window */
    double limit;        /* a sentence of this window is a new hit only if its score by words is above this limit */
    uint32_t only;       /* NO_ITEM, or the only document to search */
    bool distinct;
    uint8_t *held; /* one bit for each span; 1: the heap has a hit of the passage that starts with this span, and
                    * another sentence or score may replace the hit */
    Hit *heap;     /* the worst hit first */
    size_t hits, k;
    uint8_t *rows;     /* the rows of the window */
    uint8_t *hit_rows; /* the rows of the hits */
    /* One bit for each row of the window. `touched`: the row has a code. `promising`: the row can become a hit. */
    uint64_t touched[WINDOW / 64], promising[WINDOW / 64];
    Place place;
    uint8_t *known; /* two bits for each document; 0: not checked yet; 1: the filter admits the document; 2: the filter
                     * refuses the document */
} Ranker;

/* ---- Cursors ---- */

/* Moves to the first block that may contain the id or a higher id. False: there is no such block. */
static inline bool skip_blocks(Cursor *cursor, uint64_t id) {
    const View *view = &cursor->view;
    uint32_t block = cursor->block, step = 1;
    if (block == view->total) return false;
    if (view_last(view, block) >= id) return true;
    /* Gallops, then bisects: block `low` is before the id, block `high` is not. */
    uint32_t low = block, high = block + step;
    while (high < view->total && view_last(view, high) < id) {
        low = high;
        step *= 2;
        high = view->total - high > step ? high + step : view->total;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (view_last(view, middle) < id) low = middle;
        else high = middle;
    }
    cursor->block = high;
    return high < view->total;
}

static inline void decode(Cursor *cursor) {
    if (cursor->decoded == cursor->block) return;
    view_decode(&cursor->view, cursor->block, &cursor->at);
    cursor->decoded = cursor->block;
    cursor->position = 0;
}

/* Moves to the posting with this id, or to the posting with the next higher id. The decoded block must contain such an
 * id. */
static inline void skip_postings(Cursor *cursor, uint64_t id) {
    if (id <= cursor->at.base) return;
    uint32_t offset = (uint32_t)(id - cursor->at.base), low = cursor->position, length = cursor->at.count - low;
    const uint32_t *offsets = cursor->at.offsets;
    if (offsets[low] >= offset) return;
    while (length > 1) {
        uint32_t half = length / 2;
        low += offsets[low + half - 1] < offset ? half : 0;
        length -= half;
    }
    cursor->position = low;
}

/* Returns a lower bound for the id of the next posting, at `id` or later. NO_ID: there is no such posting. */
static uint64_t next_id(Cursor *cursor, uint64_t id) {
    if (!skip_blocks(cursor, id)) return NO_ID;
    if (cursor->decoded == cursor->block) {
        skip_postings(cursor, id);
        return cursor->at.base + cursor->at.offsets[cursor->position];
    }
    uint64_t first = cursor->block ? view_last(&cursor->view, cursor->block - 1) + 1 : 0;
    return first > id ? first : id;
}

/* Returns the highest code that the term may have in the window, which has the ids from `first` to before `end`. 0: the
 * term is not in the window. Also counts the blocks that overlap the window. */
static uint8_t window_max(Cursor *cursor, uint64_t first, uint64_t end) {
    cursor->window_blocks = 0;
    if (next_id(cursor, first) >= end) return 0;
    uint8_t max = 0;
    for (uint32_t block = cursor->block; block < cursor->view.total; block++) {
        uint8_t here = view_max(&cursor->view, block);
        if (here > max) max = here;
        cursor->window_blocks++;
        if (view_last(&cursor->view, block) >= end - 1) break;
    }
    return max;
}

/* ---- Hits ---- */

static inline bool is_worse(const Hit *a, const Hit *b) {
    return a->score != b->score ? a->score < b->score : a->id > b->id;
}

static void sift_down(Hit *heap, size_t count, size_t at) {
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) return;
        if (child + 1 < count && is_worse(&heap[child + 1], &heap[child])) child++;
        if (!is_worse(&heap[child], &heap[at])) return;
        Hit hit = heap[at];
        heap[at] = heap[child];
        heap[child] = hit;
        at = child;
    }
}

/* Returns the limit for scores by words: a sentence with this contribution of meaning exceeds the threshold only if its
 * score by words is above the limit. Rounded down. */
static inline double words_limit(const Ranker *ranker, double meaning) {
    const double threshold = ranker->threshold;
    return threshold - meaning - 1e-12 * (fabs(threshold) + fabs(meaning));
}

static inline void set_limit(Ranker *ranker) {
    ranker->limit = ranker->meaning ? words_limit(ranker, ranker->most_meaning) : ranker->threshold;
}

static void raise_threshold(Ranker *ranker) {
    if (ranker->hits < ranker->k) return;
    /* Without a vector, the search finds the sentences in the order of their ids. Of two sentences with equal scores,
     * the higher id loses, so the later sentence is no hit. With a vector, the first hits have any order. */
    double worst = ranker->heap[0].score;
    ranker->threshold = ranker->meaning ? nextafter(worst, -INFINITY) : worst;
    set_limit(ranker);
}

static bool is_held(const Ranker *ranker, size_t span) { return ranker->held[span / 8] >> span % 8 & 1; }

/* Records in `held` whether the heap contains the hit. Does nothing for a hit that no other hit of its passage may
 * replace. */
static void hold(Ranker *ranker, const Hit *hit, bool holds) {
    if (!ranker->meaning || hit->span == NO_SPAN || (!ranker->distinct && !hit->by_meaning)) return;
    uint8_t bit = (uint8_t)(1 << hit->span % 8), *byte = &ranker->held[hit->span / 8];
    *byte = holds ? *byte | bit : *byte & (uint8_t)~bit;
}

static void put_row(Ranker *ranker, const Hit *hit, const uint8_t *row) {
    memcpy(ranker->hit_rows + hit->row * ranker->stride, row, ranker->stride);
}

static void keep(Ranker *ranker, Hit hit, const uint8_t *row) {
    Hit *heap = ranker->heap;
    if (ranker->hits < ranker->k) {
        size_t at = ranker->hits++;
        hit.row = (uint32_t)at & 0x7fffffff;
        put_row(ranker, &hit, row);
        for (; at && is_worse(&hit, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
        heap[at] = hit;
    } else {
        hit.row = heap[0].row;
        hold(ranker, &heap[0], false);
        heap[0] = hit;
        put_row(ranker, &hit, row);
        sift_down(heap, ranker->hits, 0);
    }
    hold(ranker, &hit, true);
    raise_threshold(ranker);
}

/* Adds a hit to a ranking with a vector. The hit may replace an earlier hit: a first hit of the same sentence, or, if
 * the query is `distinct`, any hit of the same passage. */
static void keep_by_both(Ranker *ranker, Hit hit, const uint8_t *row) {
    Hit *heap = ranker->heap;
    if (hit.span != NO_SPAN && is_held(ranker, hit.span)) {
        size_t at = 0;
        while (at < ranker->hits && (ranker->distinct ? heap[at].span != hit.span : heap[at].id != hit.id)) at++;
        if (at < ranker->hits) {
            if (is_worse(&hit, &heap[at])) return;
            hit.row = heap[at].row;
            hold(ranker, &heap[at], false);
            hold(ranker, &hit, true);
            heap[at] = hit;
            put_row(ranker, &hit, row);
            sift_down(heap, ranker->hits, at);
            raise_threshold(ranker);
            return;
        }
    }
    if (ranker->hits < ranker->k || is_worse(&heap[0], &hit)) keep(ranker, hit, row);
}

/* True: the document satisfies the filter, and is not excluded by `only`. The filter checks each document once. */
static bool is_admitted_document(Ranker *ranker, uint32_t number) {
    if (ranker->only != NO_ITEM && ranker->only != number) return false;
    if (!ranker->filter) return true;
    uint8_t *known = &ranker->known[number / 4], shift = number % 4 * 2;
    if (!(*known >> shift & 3))
        *known |= (filter_matches(ranker->filter, document_at(ranker->index, number)) ? 1 : 2) << shift;
    return (*known >> shift & 3) == 1;
}

/* True: the sentence's document is live (or open, if the query searches open documents), and the filter and `only`
 * admit the document. */
static bool is_admitted(Ranker *ranker, uint64_t id) {
    const Index *index = ranker->index;
    if (ranker->open) {
        if (!id_is_kept(index, id, &ranker->place) || id_is_live(index, id, &ranker->place)) return false;
    } else if (!ranker->filter && ranker->only == NO_ITEM && !index->dead_postings && !index->pending && !index->work) {
        return true;
    } else if (!id_is_live(index, id, &ranker->place)) {
        return false;
    }
    return is_admitted_document(ranker, ranker->place.document);
}

/* Returns the score by words of a complete row. Adds in the order of the query's terms. */
static double score_row(const Ranker *ranker, const uint8_t *row) {
    double sum = 0, roots = 0;
    for (unsigned column = 0; column < ranker->count; column++) {
        sum += code_weight[row[column]] * ranker->idf[column];
        roots += code_root[row[column]] * ranker->root_idf[column];
    }
    return score_of(sum, roots);
}

/* Completes the row of a sentence with the terms that are not essential. Keeps the sentence as a hit if its score is
 * above the threshold. `sum` and `roots` are the sums of the row so far. */
static void consider(Ranker *ranker, uint64_t id, uint8_t *row, double sum, double roots) {
    size_t span = NO_SPAN;
    double meaning = 0, limit = ranker->threshold;
    if (ranker->meaning) {
        span = meaning_find(ranker->meaning, id);
        double cosine = ranker->meaning->spans[span].cosine;
        meaning = meaning_weigh(ranker->meaning->vector, cosine);
        limit = words_limit(ranker, meaning);
        if (isnan(cosine)) span = NO_SPAN;
    }
    for (unsigned i = ranker->essential; i-- > 0;) {
        Cursor *cursor = ranker->cursors[i];
        if (bound(sum + ranker->sums[i + 1], roots + ranker->roots[i + 1]) <= limit) return;
        if (!skip_blocks(cursor, id)) continue;
        if (cursor->decoded != cursor->block) {
            uint8_t max = view_max(&cursor->view, cursor->block);
            double most = sum + code_weight[max] * cursor->idf, most_root = roots + code_root[max] * cursor->root_idf;
            if (bound(most + ranker->sums[i], most_root + ranker->roots[i]) <= limit) return;
            decode(cursor);
        }
        skip_postings(cursor, id);
        if (cursor->at.base + cursor->at.offsets[cursor->position] != id) continue;
        uint8_t code = row[cursor->column] = cursor->at.codes[cursor->position];
        sum += code_weight[code] * cursor->idf;
        roots += code_root[code] * cursor->root_idf;
    }
    double words = score_row(ranker, row);
    Hit hit = {.score = ranker->meaning ? words + meaning : words, .id = id, .span = (uint32_t)span};
    if (hit.score <= ranker->threshold || !is_admitted(ranker, id)) return;
    if (span != NO_SPAN) hit.span = (uint32_t)meaning_start(ranker->meaning, span);
    if (ranker->meaning) keep_by_both(ranker, hit, row);
    else keep(ranker, hit, row);
}

/* ---- Windows ---- */

static inline Row *row_at(const Ranker *ranker, unsigned slot) {
    return (Row *)(ranker->rows + slot * (sizeof(Row) + ranker->stride));
}

/* Adds the postings of a term in the window, which has the ids from `first` to before `end`, to the rows.
 * `promising_only` true: only to promising rows. False: to all rows, which become touched. */
static inline __attribute__((always_inline)) void add_postings(Ranker *ranker, Cursor *cursor, uint64_t first,
                                                               uint64_t end, bool promising_only) {
    const unsigned column = cursor->column;
    for (uint64_t from = first; skip_blocks(cursor, from); from = view_last(&cursor->view, cursor->block) + 1) {
        if (from >= end) return;
        decode(cursor);
        skip_postings(cursor, from);
        if (cursor->at.base >= end) return;
        uint32_t at = cursor->position, shift = (uint32_t)(cursor->at.base - first);
        for (; at < cursor->at.count; at++) {
            uint32_t slot = cursor->at.offsets[at] + shift; /* unsigned overflow is correct here: the base may be before
                                                             * the window */
            if (slot >= end - first) break;
            if (promising_only && !(ranker->promising[slot / 64] >> slot % 64 & 1)) continue;
            Row *row = row_at(ranker, slot);
            uint8_t code = cursor->at.codes[at];
            row->sum += cursor->sums[code];
            row->roots += cursor->roots[code];
            row->codes[column] = code;
            if (!promising_only) ranker->touched[slot / 64] |= UINT64_C(1) << slot % 64;
        }
        if (at < cursor->at.count) {
            cursor->position = at;
            return;
        }
    }
}

/* Marks a row as not promising if it cannot become a hit with the remaining terms. Returns the number of promising
 * rows.
 */
static unsigned sift_rows(Ranker *ranker) {
    const float edges = (float)EDGES, rest = (float)ranker->sums[ranker->essential];
    const float rest_roots = (float)ranker->roots[ranker->essential];
    const float limit = (float)(ranker->limit / COARSE_SAFETY);
    unsigned left = 0;
    for (unsigned word = 0; word < WINDOW / 64; word++) {
        uint64_t wins = 0;
        for (uint64_t bits = ranker->promising[word]; bits; bits &= bits - 1) {
            unsigned bit = (unsigned)__builtin_ctzll(bits);
            const Row *row = row_at(ranker, word * 64 + bit);
            float sum = row->sum + rest, roots = row->roots + rest_roots;
            wins |= (uint64_t)(sum + edges * (roots * roots - sum) >= limit) << bit;
        }
        ranker->promising[word] = wins;
        left += (unsigned)__builtin_popcountll(wins);
    }
    return left;
}

static void consider_row(Ranker *ranker, uint64_t id, Row *row) {
    double sum = 0, roots = 0;
    for (unsigned i = ranker->essential; i < ranker->count; i++) {
        const Cursor *cursor = ranker->cursors[i];
        uint8_t code = row->codes[cursor->column];
        sum += code_weight[code] * cursor->idf;
        roots += code_root[code] * cursor->root_idf;
    }
    if (bound(sum + ranker->sums[ranker->essential], roots + ranker->roots[ranker->essential]) > ranker->limit)
        consider(ranker, id, row->codes, sum, roots);
}

static void scan_rows(Ranker *ranker, uint64_t first, uint64_t end) {
    size_t row_bytes = sizeof(Row) + ranker->stride;
    for (unsigned i = ranker->essential; i < ranker->count; i++)
        if (ranker->cursors[i]->window_max) add_postings(ranker, ranker->cursors[i], first, end, false);
    /* With many rows, reading all postings of another term is faster than one lookup for each row. */
    memcpy(ranker->promising, ranker->touched, sizeof ranker->touched);
    unsigned left = sift_rows(ranker);
    while (left && ranker->essential) {
        Cursor *cursor = ranker->cursors[ranker->essential - 1];
        if (left * LOOKUP_POSTINGS < cursor->window_blocks * BLOCK_POSTINGS) break;
        if (cursor->window_max) add_postings(ranker, cursor, first, end, true);
        ranker->essential--;
        left = sift_rows(ranker);
    }
    for (unsigned word = 0; word < WINDOW / 64; word++) {
        for (uint64_t bits = ranker->promising[word]; bits; bits &= bits - 1) {
            unsigned slot = word * 64 + (unsigned)__builtin_ctzll(bits);
            consider_row(ranker, first + slot, row_at(ranker, slot));
        }
        if (row_bytes == 16)
            for (uint64_t bits = ranker->touched[word]; bits; bits &= bits - 1)
                memset(row_at(ranker, word * 64 + (unsigned)__builtin_ctzll(bits)), 0, 16);
        else if (ranker->touched[word]) memset(row_at(ranker, word * 64), 0, 64 * row_bytes);
        ranker->touched[word] = ranker->promising[word] = 0;
    }
}

static void scan_window(Ranker *ranker, uint64_t first, uint64_t end) {
    ranker->essential = ranker->count;
    if (ranker->meaning) ranker->most_meaning = meaning_most(ranker->meaning, first, end);
    set_limit(ranker);
    for (unsigned i = 0; i < ranker->count; i++) {
        Cursor *cursor = ranker->cursors[i];
        uint8_t max = cursor->window_max = window_max(cursor, first, end);
        ranker->sums[i + 1] = ranker->sums[i] + code_weight[max] * cursor->idf;
        ranker->roots[i + 1] = ranker->roots[i] + code_root[max] * cursor->root_idf;
        if (ranker->essential == ranker->count && bound(ranker->sums[i + 1], ranker->roots[i + 1]) > ranker->limit)
            ranker->essential = i;
    }
    if (ranker->essential < ranker->count) scan_rows(ranker, first, end);
}

/* Searches all windows of a range of ids. */
static void scan_range(Ranker *ranker, Range range) {
    uint64_t first = range.first;
    while (first < range.end) {
        /* The next window starts at the next posting of an essential term. To find the next window, the highest code of
         * each whole list decides which terms are essential. */
        const double limit = ranker->meaning ? words_limit(ranker, ranker->meaning->most) : ranker->threshold;
        double sum = 0, roots = 0;
        unsigned essential = 0;
        for (; essential < ranker->count; essential++) {
            sum += ranker->cursors[essential]->most;
            roots += ranker->cursors[essential]->most_root;
            if (bound(sum, roots) > limit) break;
        }
        uint64_t next = NO_ID;
        for (unsigned i = essential; i < ranker->count; i++) {
            uint64_t id = next_id(ranker->cursors[i], first);
            if (id < next) next = id;
        }
        if (next >= range.end) return;
        first = next;
        uint64_t end = range.end - first < WINDOW ? range.end : first + WINDOW;
        scan_window(ranker, first, end);
        first = end;
    }
}

/* ---- Restricted to a few documents ---- */

static int by_first(const void *a, const void *b) {
    uint64_t first = ((const Range *)a)->first, second = ((const Range *)b)->first;
    return (first > second) - (first < second);
}

/* The ranges of ids to search, ascending. The range of a document that was added in parts may include sentences of
 * other documents. The filter or `only` refuses these sentences. */
typedef struct Ranges {
    Range *items;
    size_t count, capacity;
    uint64_t vector_bytes; /* bytes of the passages' vectors in these ranges */
} Ranges;

/* If the query or its filter names a few documents, returns the ranges of these documents; otherwise returns the range
 * of all ids from `since` on. */
static Ranges choose_ranges(Ranker *ranker) {
    Index *index = ranker->index;
    uint32_t *documents = NULL;
    size_t bytes = 0;
    /* `only` may be an open document, which filter_documents() does not find. */
    if (ranker->only != NO_ITEM) {
        const Document *document = document_at(index, ranker->only);
        Ranges one = {.items = memory_alloc(index, sizeof *one.items), .count = 1, .capacity = 1};
        one.items[0] = (Range){document->head, document->head + document->span + 1};
        if (ranker->meaning) one.vector_bytes = meaning_bytes(ranker->meaning, &ranker->only, 1);
        return one;
    }
    int64_t count = ranker->filter && !ranker->open ? filter_documents(index, ranker->filter, &documents, &bytes) : -1;
    bool few = count >= 0 && (uint64_t)count <= index->document_count / 8 + 1;
    Ranges ranges = {.capacity = few ? (size_t)count : 1};
    ranges.items = memory_alloc(index, ranges.capacity * sizeof *ranges.items);
    if (ranker->meaning) {
        static const uint32_t NONE;
        ranges.vector_bytes = meaning_bytes(ranker->meaning, !few ? NULL : count ? documents : &NONE, (size_t)count);
    }
    if (!few) {
        ranges.items[ranges.count++] = (Range){ranker->since, index->next_id};
    } else {
        for (int64_t i = 0; i < count; i++) {
            const Document *document = document_at(index, documents[i]);
            ranges.items[i] = (Range){document->head, document->head + document->span + 1};
        }
        if (count) qsort(ranges.items, (size_t)count, sizeof *ranges.items, by_first);
        uint64_t done = ranker->since;
        for (int64_t i = 0; i < count; i++) {
            Range range = ranges.items[i];
            if (range.first < done) range.first = done;
            if (range.end <= done) continue;
            done = range.end;
            ranges.items[ranges.count++] = range;
        }
    }
    memory_free(index, documents, bytes);
    return ranges;
}

static void free_ranges(Index *index, Ranges *ranges) {
    memory_free(index, ranges->items, ranges->capacity * sizeof *ranges->items);
}

/* ---- Beginning and end ---- */

static int by_most(const void *a, const void *b) {
    double first = (*(Cursor *const *)a)->most, second = (*(Cursor *const *)b)->most;
    return (first > second) - (first < second);
}

static void weigh(Ranker *ranker, const IndexQuery *query, const IndexRanking *ranking) {
    double sentences = (double)(query->global ? query->sentences : ranking->sentences);
    for (unsigned i = 0; i < ranker->count; i++) {
        double frequency = (double)(query->global ? query->terms[i].frequency : ranking->frequencies[i]);
        ranker->idf[i] = query->idf ? query->idf[i] : term_idf(sentences, frequency);
        ranker->root_idf[i] = sqrt(ranker->idf[i]);
    }
}

static void open_cursors(Ranker *ranker, Cursor *cursors, const uint32_t *terms) {
    for (unsigned i = 0; i < ranker->count; i++) {
        Cursor *cursor = ranker->cursors[i] = &cursors[i];
        cursor->view = terms[i] == NO_ITEM ? (View){0} : postings_view(entry_at(ranker->index, terms[i]));
        cursor->block = cursor->position = 0;
        cursor->decoded = NOT_DECODED;
        cursor->column = i;
        cursor->idf = ranker->idf[i];
        cursor->root_idf = ranker->root_idf[i];
        cursor->most = code_weight[cursor->view.max] * cursor->idf;
        cursor->most_root = code_root[cursor->view.max] * cursor->root_idf;
        for (unsigned code = 0; code < 256; code++) {
            cursor->sums[code] = (float)(code_weight[code] * cursor->idf);
            cursor->roots[code] = (float)(code_root[code] * cursor->root_idf);
        }
    }
    qsort(ranker->cursors, ranker->count, sizeof *ranker->cursors, by_most);
}

static IndexHit describe(const Ranker *ranker, const Hit *hit) {
    Place place = runs_find(ranker->index, hit->id);
    const Document *document = document_at(ranker->index, place.document);
    IndexHit out = {.document = document->bytes,
                    .document_length = document->id_bytes,
                    .sentence = place.sentence + (uint32_t)(hit->id - place.first) - 1,
                    .score = score_row(ranker, ranker->hit_rows + hit->row * ranker->stride),
                    .total = hit->score,
                    .place = document->head,
                    .cosine = NAN};
    if (ranker->meaning)
        out.cosine = meaning_of_sentence(ranker->meaning, document, out.sentence, &out.passage, &out.passage_sentences);
    return out;
}

static void report(Ranker *ranker, IndexRanking *ranking) {
    Hit *heap = ranker->heap;
    ranking->count = ranker->hits;
    for (size_t left = ranker->hits; left--;) {
        Hit hit = heap[0];
        heap[0] = heap[left];
        sift_down(heap, left, 0);
        ranking->hits[left] = describe(ranker, &hit);
        for (unsigned column = 0; column < ranker->count; column++)
            ranking->weights[left * ranker->count + column] =
                code_weight[ranker->hit_rows[hit.row * ranker->stride + column]];
    }
}

/* ---- With a vector ---- */

static bool admits_document(void *context, uint32_t number) { return is_admitted_document(context, number); }

/* Adds the first hits: the first sentences of the passages with the highest cosines. */
static void start_with_passages(Ranker *ranker, const Ranges *ranges) {
    static const uint8_t NO_CODES[INDEX_MAX_QUESTION_TERMS];
    Meaning *meaning = ranker->meaning;
    meaning_reserve(meaning, ranges->vector_bytes / meaning->bytes);
    for (size_t i = 0; i < ranges->count; i++)
        meaning_scan(meaning, ranges->items[i].first, ranges->items[i].end, admits_document, ranker);
    ranker->held = memory_zeroed(ranker->index, meaning->count / 8 + 1);
    for (size_t span = 0; span < meaning->count; span++) {
        if (!meaning->spans[span].starts) continue;
        double score = meaning_weigh(meaning->vector, meaning->spans[span].cosine);
        if (score > ranker->threshold || ranker->hits < ranker->k)
            keep_by_both(ranker,
                         (Hit){.score = score, .id = meaning->spans[span].id, .by_meaning = 1, .span = (uint32_t)span},
                         NO_CODES);
    }
}

/* A hit by words, and the passage of its sentence. */
typedef struct Chosen {
    Hit hit;
    uint64_t passage; /* unique for each passage */
} Chosen;

static int by_rank(const void *a, const void *b) {
    const Hit *first = &((const Chosen *)a)->hit, *second = &((const Chosen *)b)->hit;
    return is_worse(first, second) ? 1 : is_worse(second, first) ? -1 : 0;
}

static void add_meaning(const Ranker *ranker, Chosen *chosen) {
    uint32_t first, sentences;
    Place place = runs_find(ranker->index, chosen->hit.id);
    uint32_t sentence = place.sentence + (uint32_t)(chosen->hit.id - place.first) - 1;
    const Document *document = document_at(ranker->index, place.document);
    double cosine = meaning_of_sentence(ranker->meaning, document, sentence, &first, &sentences);
    chosen->hit.score += meaning_weigh(ranker->meaning->vector, cosine);
    chosen->passage = (uint64_t)place.document << 32 | first;
}

/* Ranks without reading all vectors, because the vectors have more bytes than `scan_bytes`. Finds the INDEX_MAX_HITS
 * best sentences by words, and then ranks only these sentences by words and meaning. */
static void search_words_first(Ranker *ranker, const Ranges *ranges) {
    Index *index = ranker->index;
    Meaning *meaning = ranker->meaning;
    const size_t k = ranker->k;
    ranker->meaning = NULL;
    ranker->k = INDEX_MAX_HITS;
    ranker->threshold = -1;
    for (size_t i = 0; i < ranges->count; i++) scan_range(ranker, ranges->items[i]);
    ranker->meaning = meaning;
    const size_t count = ranker->hits;
    Chosen *chosen = memory_alloc(index, INDEX_MAX_HITS * sizeof *chosen);
    for (size_t i = 0; i < count; i++) {
        chosen[i].hit = ranker->heap[i];
        add_meaning(ranker, &chosen[i]);
    }
    qsort(chosen, count, sizeof *chosen, by_rank);
    size_t kept = 0;
    for (size_t i = 0; i < count && kept < k; i++) {
        size_t at = 0;
        while (ranker->distinct && at < kept && chosen[at].passage != chosen[i].passage) at++;
        if (!ranker->distinct || at == kept) chosen[kept++] = chosen[i];
    }
    /* An ascending array is a valid heap with the worst hit first. */
    ranker->hits = kept;
    for (size_t i = 0; i < kept; i++) ranker->heap[i] = chosen[kept - 1 - i].hit;
    memory_free(index, chosen, INDEX_MAX_HITS * sizeof *chosen);
}

/* ---- The whole ---- */

static void search(Ranker *ranker, const IndexQuery *query, const uint32_t *terms) {
    Index *index = ranker->index;
    const size_t stride = ranker->stride;
    size_t cursor_bytes = ranker->count * sizeof(Cursor),
           known_bytes = ranker->filter ? index->documents.items / 4 + 1 : 0;
    Cursor *cursors = memory_alloc(index, cursor_bytes);
    ranker->rows = memory_zeroed(index, WINDOW * (sizeof(Row) + stride));
    if (known_bytes) ranker->known = memory_zeroed(index, known_bytes);
    open_cursors(ranker, cursors, terms);
    Ranges ranges = choose_ranges(ranker);
    if (query->vector && ranges.vector_bytes > query->vector->scan_bytes) {
        search_words_first(ranker, &ranges);
    } else {
        if (ranker->meaning) start_with_passages(ranker, &ranges);
        for (size_t i = 0; i < ranges.count; i++) scan_range(ranker, ranges.items[i]);
    }
    if (ranker->held) memory_free(index, ranker->held, ranker->meaning->count / 8 + 1);
    free_ranges(index, &ranges);
    memory_free(index, ranker->known, known_bytes);
    memory_free(index, ranker->rows, WINDOW * (sizeof(Row) + stride));
    memory_free(index, cursors, cursor_bytes);
}

uint64_t index_next_id(const Index *index) { return index->next_id; }

IndexStatus index_rank(Index *index, const IndexQuery *query, IndexRanking *ranking) {
    uint32_t terms[INDEX_MAX_QUESTION_TERMS];
    if (query->count > INDEX_MAX_QUESTION_TERMS || query->k > INDEX_MAX_HITS) return INDEX_INVALID;
    for (size_t i = 0; i < query->count; i++) {
        const IndexTerm *term = &query->terms[i];
        bool fits = term->length && term->length <= INDEX_MAX_TERM;
        terms[i] = fits ? dictionary_find(index, term->bytes, term->length) : NO_ITEM;
        ranking->frequencies[i] = terms[i] == NO_ITEM ? 0 : entry_at(index, terms[i])->df;
    }
    ranking->sentences = index->sentences;
    ranking->terms = index->terms;
    ranking->count = 0;
    if (!query->k || (!query->count && !query->vector)) return INDEX_OK;
    if (query->place && runs_find(index, *query->place).document == NO_ITEM) return INDEX_OK;
    Meaning meaning;
    if (query->vector) meaning_open(&meaning, index, query->vector);
    if (query->vector && query->open) meaning.encoder = NO_ENCODER; /* open documents have no vectors */
    /* search_words_first() keeps up to INDEX_MAX_HITS hits. */
    const size_t room = query->vector ? INDEX_MAX_HITS : query->k;
    Ranker ranker = {
        .index = index,
        .filter = query->filter,
        .since = query->since,
        .open = query->open,
        .count = (unsigned)query->count,
        .stride = query->count <= 8    ? 8
                  : query->count <= 16 ? 16
                                       : 32,
        .threshold = query->vector ? -INFINITY : -1,
        .meaning = query->vector ? &meaning : NULL,
        .distinct = query->distinct,
        .only = query->place ? runs_find(index, *query->place).document : NO_ITEM,
        .k = query->k,
    };
    ranker.heap = memory_alloc(index, room * sizeof *ranker.heap);
    ranker.hit_rows = memory_alloc(index, room * ranker.stride);
    weigh(&ranker, query, ranking);
    search(&ranker, query, terms);
    report(&ranker, ranking);
    if (query->vector) meaning_close(&meaning);
    memory_free(index, ranker.hit_rows, room * ranker.stride);
    memory_free(index, ranker.heap, room * sizeof *ranker.heap);
    return INDEX_OK;
}

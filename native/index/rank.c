/* The best sentences for a question: exact top k by block-max MaxScore in windows of ids.
 *
 * A score, sum + EDGES * (roots^2 - sum) with EDGES below 1, grows with every weight. So upper bounds of the weights of
 * a sentence give an upper bound of its score. The terms are in ascending order of their maximum contribution. The
 * lowest terms that even together cannot lift a sentence above the current k-th best score are not essential: every new
 * hit contains another term.
 *
 * The search goes through the ids in windows. In each window it finds the essential terms from the maxima of the blocks
 * that overlap the window. Often no term is essential, and the search skips the window without decoding a block.
 * Otherwise it writes the codes of the essential terms into a row for each id, with sums in floats that show which rows
 * can still win. It completes these rows from the other terms, the best first, each only while the rest can lift the
 * row above the k-th best score.
 *
 * Sums for bounds are added in another order than the score, so SAFETY raises them by more than the possible rounding
 * error. The score itself is always a sum in the order of the query's terms, from tables, and is the same on every
 * machine. */
#include "index/structure.h"

#include <math.h>
#include <stdlib.h>

#include "index/codes.h"
#include "index/dictionary.h"
#include "index/filter.h"
#include "index/memory.h"
#include "index/postings.h"
#include "index/runs.h"

/* One lookup costs about as much as reading LOOKUP_POSTINGS postings. */
enum { WINDOW = 2048, LOOKUP_POSTINGS = 24, NOT_DECODED = 0xffffffff };

static const float COARSE_SAFETY = 1 + 1e-5f; /* for sums of floats */

/* The codes and sums of one id of the window. There is a code for each of the query's terms, rounded up. */
typedef struct Row {
    float sum, roots;
    uint8_t codes[];
} Row;

typedef struct Cursor {
    View view;
    uint32_t block;   /* the first block that may contain an id from here on */
    uint32_t decoded; /* the number of the block in `at` */
    uint32_t position;
    unsigned column; /* the position of the term in the query */
    double idf, root_idf;
    double most, most_root; /* the maximum of all postings */
    uint8_t window_max;
    uint32_t window_blocks;
    float sums[256], roots[256]; /* by code, for the rows */
    Decoded at;
} Cursor;

typedef struct Hit {
    double score;
    uint64_t id;
    uint32_t row; /* the row of its codes */
} Hit;

typedef struct Range {
    uint64_t first, end;
} Range;

typedef struct Ranker {
    Index *index;
    const IndexFilter *filter;
    uint64_t since;
    bool open;
    Cursor *cursors[INDEX_MAX_QUESTION_TERMS]; /* ascending by their maximum contribution */
    double idf[INDEX_MAX_QUESTION_TERMS], root_idf[INDEX_MAX_QUESTION_TERMS]; /* by column */
    /* The maximum sum of the first i cursors in this window. */
    double sums[INDEX_MAX_QUESTION_TERMS + 1], roots[INDEX_MAX_QUESTION_TERMS + 1];
    unsigned count, essential; /* the number of cursors; the first essential cursor in this window */
    size_t stride;             /* the number of codes of a row */
    double threshold;          /* the k-th best score; negative before there are k hits */
    Hit *heap;                 /* the worst hit first */
    size_t hits, k;
    uint8_t *rows;     /* of the window */
    uint8_t *hit_rows; /* of the hits */
    uint64_t touched[WINDOW / 64], promising[WINDOW / 64];
    Place place;
    uint8_t *known; /* by document: 1: the filter admits it, 2: it does not */
} Ranker;

/* ---- Cursors ---- */

/* Moves to the first block that may contain the id or a higher one. */
static inline bool skip_blocks(Cursor *cursor, uint64_t id) {
    const View *view = &cursor->view;
    uint32_t block = cursor->block, step = 1;
    if (block == view->total) return false;
    if (view_last(view, block) >= id) return true;
    /* Gallops, then bisects: `low` is too early, `high` is not. */
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

/* Moves within the decoded block, which contains the id or a higher one. */
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

/* A lower bound of the ids of the postings from `id` on; NO_ID: there is no such posting. */
static uint64_t next_id(Cursor *cursor, uint64_t id) {
    if (!skip_blocks(cursor, id)) return NO_ID;
    if (cursor->decoded == cursor->block) {
        skip_postings(cursor, id);
        return cursor->at.base + cursor->at.offsets[cursor->position];
    }
    uint64_t first = cursor->block ? view_last(&cursor->view, cursor->block - 1) + 1 : 0;
    return first > id ? first : id;
}

/* The best code that the window may contain. Counts the blocks that overlap the window. */
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

static void keep(Ranker *ranker, double score, uint64_t id, const uint8_t *row) {
    Hit *heap = ranker->heap;
    if (ranker->hits < ranker->k) {
        size_t at = ranker->hits++;
        Hit hit = {score, id, (uint32_t)at};
        memcpy(ranker->hit_rows + at * ranker->stride, row, ranker->stride);
        for (; at && is_worse(&hit, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
        heap[at] = hit;
    } else {
        heap[0].score = score;
        heap[0].id = id;
        memcpy(ranker->hit_rows + heap[0].row * ranker->stride, row, ranker->stride);
        sift_down(heap, ranker->hits, 0);
    }
    if (ranker->hits == ranker->k) ranker->threshold = heap[0].score;
}

/* True: the filter admits the sentence, and it is live, or of an open document if these are searched. The filter checks
 * each document once. */
static bool is_admitted(Ranker *ranker, uint64_t id) {
    const Index *index = ranker->index;
    if (ranker->open) {
        if (!id_is_kept(index, id, &ranker->place) || id_is_live(index, id, &ranker->place)) return false;
    } else if (!ranker->filter && !index->dead_postings && !index->pending && !index->work) {
        return true;
    } else if (!id_is_live(index, id, &ranker->place)) {
        return false;
    }
    if (!ranker->filter) return true;
    uint32_t number = ranker->place.document;
    uint8_t *known = &ranker->known[number / 4], shift = number % 4 * 2;
    if (!(*known >> shift & 3)) *known |= (filter_matches(ranker->filter, document_at(index, number)) ? 1 : 2) << shift;
    return (*known >> shift & 3) == 1;
}

/* Completes a row from the terms that are not essential, and keeps it if it is among the k best. */
static void consider(Ranker *ranker, uint64_t id, uint8_t *row, double sum, double roots) {
    for (unsigned i = ranker->essential; i-- > 0;) {
        Cursor *cursor = ranker->cursors[i];
        if (bound(sum + ranker->sums[i + 1], roots + ranker->roots[i + 1]) <= ranker->threshold) return;
        if (!skip_blocks(cursor, id)) continue;
        if (cursor->decoded != cursor->block) {
            uint8_t max = view_max(&cursor->view, cursor->block);
            double most = sum + code_weight[max] * cursor->idf, most_root = roots + code_root[max] * cursor->root_idf;
            if (bound(most + ranker->sums[i], most_root + ranker->roots[i]) <= ranker->threshold) return;
            decode(cursor);
        }
        skip_postings(cursor, id);
        if (cursor->at.base + cursor->at.offsets[cursor->position] != id) continue;
        uint8_t code = row[cursor->column] = cursor->at.codes[cursor->position];
        sum += code_weight[code] * cursor->idf;
        roots += code_root[code] * cursor->root_idf;
    }
    sum = roots = 0;
    for (unsigned column = 0; column < ranker->count; column++) {
        sum += code_weight[row[column]] * ranker->idf[column];
        roots += code_root[row[column]] * ranker->root_idf[column];
    }
    double score = score_of(sum, roots);
    if (score > ranker->threshold && is_admitted(ranker, id)) keep(ranker, score, id, row);
}

/* ---- Windows ---- */

static inline Row *row_at(const Ranker *ranker, unsigned slot) {
    return (Row *)(ranker->rows + slot * (sizeof(Row) + ranker->stride));
}

/* Adds the postings of a term in the window to the rows: to all rows, or only to promising ones. */
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
            uint32_t slot = cursor->at.offsets[at] + shift; /* modulo 2^32, because the base may be before the window */
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

/* Removes promising rows that cannot win with the remaining terms. Returns the number of the others. */
static unsigned sift_rows(Ranker *ranker) {
    const float edges = (float)EDGES, rest = (float)ranker->sums[ranker->essential];
    const float rest_roots = (float)ranker->roots[ranker->essential];
    const float limit = (float)(ranker->threshold / COARSE_SAFETY);
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
    if (bound(sum + ranker->sums[ranker->essential], roots + ranker->roots[ranker->essential]) > ranker->threshold)
        consider(ranker, id, row->codes, sum, roots);
}

static void scan_rows(Ranker *ranker, uint64_t first, uint64_t end) {
    size_t row_bytes = sizeof(Row) + ranker->stride;
    for (unsigned i = ranker->essential; i < ranker->count; i++)
        if (ranker->cursors[i]->window_max) add_postings(ranker, ranker->cursors[i], first, end, false);
    /* With many rows it is cheaper to read the postings of another term than to look up each row in them. */
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
    for (unsigned i = 0; i < ranker->count; i++) {
        Cursor *cursor = ranker->cursors[i];
        uint8_t max = cursor->window_max = window_max(cursor, first, end);
        ranker->sums[i + 1] = ranker->sums[i] + code_weight[max] * cursor->idf;
        ranker->roots[i + 1] = ranker->roots[i] + code_root[max] * cursor->root_idf;
        if (ranker->essential == ranker->count && bound(ranker->sums[i + 1], ranker->roots[i + 1]) > ranker->threshold)
            ranker->essential = i;
    }
    if (ranker->essential < ranker->count) scan_rows(ranker, first, end);
}

/* Goes through the windows of a range. */
static void scan_range(Ranker *ranker, Range range) {
    uint64_t first = range.first;
    while (first < range.end) {
        /* By the maxima of whole lists: a window can only start at a posting of an essential term. */
        double sum = 0, roots = 0;
        unsigned essential = 0;
        for (; essential < ranker->count; essential++) {
            sum += ranker->cursors[essential]->most;
            roots += ranker->cursors[essential]->most_root;
            if (bound(sum, roots) > ranker->threshold) break;
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

/* Searches only the documents that the filter names, if they are few; else returns false. The range of a document in
 * parts may include other documents, which the filter refuses. */
static bool scan_documents(Ranker *ranker) {
    Index *index = ranker->index;
    uint32_t *documents;
    size_t bytes;
    int64_t count = filter_documents(index, ranker->filter, &documents, &bytes);
    if (count < 0) return false;
    bool few = (uint64_t)count <= index->document_count / 8 + 1;
    if (few && count) {
        Range *ranges = memory_alloc(index, (size_t)count * sizeof *ranges);
        for (int64_t i = 0; i < count; i++) {
            const Document *document = document_at(index, documents[i]);
            ranges[i] = (Range){document->head, document->head + document->span + 1};
        }
        qsort(ranges, (size_t)count, sizeof *ranges, by_first);
        uint64_t done = ranker->since;
        for (int64_t i = 0; i < count; i++) {
            Range range = {ranges[i].first > done ? ranges[i].first : done, ranges[i].end};
            if (range.end <= done) continue;
            done = range.end;
            scan_range(ranker, range);
        }
        memory_free(index, ranges, (size_t)count * sizeof *ranges);
    }
    memory_free(index, documents, bytes);
    return few;
}

/* ---- The whole ---- */

static int by_most(const void *a, const void *b) {
    double first = (*(Cursor *const *)a)->most, second = (*(Cursor *const *)b)->most;
    return (first > second) - (first < second);
}

static void weigh(Ranker *ranker, const IndexQuery *query, const IndexRanking *ranking) {
    double sentences = (double)(query->global ? query->sentences : ranking->sentences);
    for (unsigned i = 0; i < ranker->count; i++) {
        double frequency = (double)(query->global ? query->terms[i].frequency : ranking->frequencies[i]);
        ranker->idf[i] = term_idf(sentences, frequency);
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

static void report(Ranker *ranker, IndexRanking *ranking) {
    Hit *heap = ranker->heap;
    ranking->count = ranker->hits;
    for (size_t left = ranker->hits; left--;) {
        Hit hit = heap[0];
        heap[0] = heap[left];
        sift_down(heap, left, 0);
        Place place = runs_find(ranker->index, hit.id);
        const Document *document = document_at(ranker->index, place.document);
        uint32_t sentence = place.sentence + (uint32_t)(hit.id - place.first) - 1;
        ranking->hits[left] = (IndexHit){document->bytes, document->id_bytes, sentence, hit.score, document->head};
        for (unsigned column = 0; column < ranker->count; column++)
            ranking->weights[left * ranker->count + column] =
                code_weight[ranker->hit_rows[hit.row * ranker->stride + column]];
    }
}

static void search(Ranker *ranker, const uint32_t *terms) {
    Index *index = ranker->index;
    size_t stride = ranker->stride, k = ranker->k;
    size_t cursor_bytes = ranker->count * sizeof(Cursor),
           known_bytes = ranker->filter ? index->documents.items / 4 + 1 : 0;
    Cursor *cursors = memory_alloc(index, cursor_bytes);
    ranker->heap = memory_alloc(index, k * sizeof *ranker->heap);
    ranker->hit_rows = memory_alloc(index, k * stride);
    ranker->rows = memory_zeroed(index, WINDOW * (sizeof(Row) + stride));
    if (known_bytes) ranker->known = memory_zeroed(index, known_bytes);
    open_cursors(ranker, cursors, terms);
    bool few = ranker->filter && !ranker->open; /* filters find only live documents by their ids */
    if (!few || !scan_documents(ranker)) scan_range(ranker, (Range){ranker->since, index->next_id});
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
    if (!query->k || !query->count) return INDEX_OK;
    Ranker ranker = {
        .index = index,
        .filter = query->filter,
        .since = query->since,
        .open = query->open,
        .count = (unsigned)query->count,
        .stride = query->count <= 8    ? 8
                  : query->count <= 16 ? 16
                                       : 32,
        .threshold = -1,
        .k = query->k,
    };
    weigh(&ranker, query, ranking);
    search(&ranker, terms);
    report(&ranker, ranking);
    memory_free(index, ranker.hit_rows, ranker.k * ranker.stride);
    memory_free(index, ranker.heap, ranker.k * sizeof *ranker.heap);
    return INDEX_OK;
}

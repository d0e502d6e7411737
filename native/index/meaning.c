/* Compares every passage with the question by meaning, for a ranking.
 *
 * A run is a range of consecutive sentence ids of one document (runs.h). A span is a range of ids with one cosine
 * (meaning.h). A scan reads the runs in ascending order of ids, and writes the spans. A passage has one span, or one
 * span for each run if its sentences are in several runs. A ranking also reads the spans in ascending order of ids.
 *
 * A cosine is (scale of the question * scale of the passage) * dot product. The dot product is exact, and the order of
 * the factors is fixed. So the cosine is the same on every machine. */
#include "index/meaning.h"

#include "index/memory.h"
#include "index/runs.h"
#include "index/vectors.h"

enum { BATCH = 128, PROGRESS = 64, FIRST_SPANS = 256, FIRST_CONTINUED = 16 };

/* The position of the scan in a document, from which the document's next run continues. */
typedef struct Progress {
    uint32_t document;
    const Vectors *part;
    size_t start; /* the first span of the last passage that the scan has read; NO_SPAN: no passage was read */
} Progress;

typedef struct Scan {
    Meaning *meaning;
    Progress progress[PROGRESS]; /* by the lowest bits of the document's number */
    size_t start;   /* the first span of this document's last passage so far; NO_SPAN: no passage was read */
    uint64_t shift; /* a sentence number of this run (from 0) plus `shift` is the sentence's id */
    uint32_t next;  /* the first sentence without a span */
    uint32_t end;   /* the first sentence after the run */
} Scan;

void meaning_open(Meaning *meaning, Index *index, const IndexVector *vector) {
    *meaning = (Meaning){.index = index,
                         .vector = vector,
                         .encoder = encoder_find(index, vector->digest),
                         .bytes = vector_bytes(vector->dims),
                         .dot = dot_function(),
                         .most = meaning_weigh(vector, NAN)};
    /* Vectors with different dimensions are not comparable. */
    if (meaning->encoder != NO_ENCODER && index->encoders[meaning->encoder].dims != vector->dims)
        meaning->encoder = NO_ENCODER;
    meaning->query = memory_zeroed(index, meaning->bytes);
    memcpy(meaning->query, vector->values, vector->dims);
}

void meaning_close(Meaning *meaning) {
    memory_free(meaning->index, meaning->query, meaning->bytes);
    memory_free(meaning->index, meaning->continued, meaning->continued_capacity * sizeof(Continued));
    memory_free(meaning->index, meaning->spans, meaning->capacity * sizeof *meaning->spans);
}

static void add_span(Meaning *meaning, uint64_t id, bool starts, double cosine) {
    if (isnan(cosine) && meaning->count && isnan(meaning->spans[meaning->count - 1].cosine)) return;
    if (meaning->count == meaning->capacity) {
        size_t wanted = 2 * meaning->capacity;
        meaning->spans = memory_resize(meaning->index, meaning->spans, meaning->capacity * sizeof *meaning->spans,
                                       wanted * sizeof *meaning->spans);
        meaning->capacity = wanted;
    }
    meaning->spans[meaning->count++] = (Span){.id = id, .starts = starts, .cosine = cosine};
    double here = meaning_weigh(meaning->vector, cosine);
    if (here > meaning->most) meaning->most = here;
}

void meaning_reserve(Meaning *meaning, size_t passages) {
    meaning->capacity = passages + passages / 4 + FIRST_SPANS;
    meaning->spans = memory_alloc(meaning->index, meaning->capacity * sizeof *meaning->spans);
}

static void add_continued(Meaning *meaning, size_t start) {
    if (meaning->continued_count == meaning->continued_capacity) {
        size_t wanted = meaning->continued_capacity ? 2 * meaning->continued_capacity : FIRST_CONTINUED;
        meaning->continued = memory_resize(meaning->index, meaning->continued,
                                           meaning->continued_capacity * sizeof(Continued), wanted * sizeof(Continued));
        meaning->continued_capacity = wanted;
    }
    meaning->continued[meaning->continued_count++] = (Continued){meaning->count, start};
}

size_t meaning_start(const Meaning *meaning, size_t span) {
    size_t low = 0, high = meaning->continued_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (meaning->continued[middle].span < span) low = middle + 1;
        else high = middle;
    }
    return low < meaning->continued_count && meaning->continued[low].span == span ? meaning->continued[low].start
                                                                                  : span;
}

static double cosine_of(const Meaning *meaning, float scale, int32_t product) {
    return (double)meaning->vector->scale * (double)scale * product;
}

/* Returns the index of the first passage of a part that contains the sentence or starts after the sentence. `count`:
 * there is no such passage. */
static uint32_t passage_from(const Passage *passages, uint32_t count, uint32_t sentence) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((uint64_t)passages[middle].first + passages[middle].count <= sentence) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Adds the spans of the passages that are in this part and in this run. False: the run has no passages of later parts.
 */
static bool scan_part(Scan *scan, const Vectors *part) {
    Meaning *meaning = scan->meaning;
    const Passage *passages = part->passages;
    const int8_t *values = part_values(part);
    int32_t products[BATCH];
    for (uint32_t at = passage_from(passages, part->count, scan->next); at < part->count;) {
        /* Every passage has at least one sentence, so the rest of the run has at most this number of passages. */
        uint32_t count = scan->end - scan->next, left = part->count - at;
        if (count > left) count = left;
        if (count > BATCH) count = BATCH;
        meaning->dot(meaning->query, values + at * meaning->bytes, count, meaning->bytes, products);
        for (uint32_t i = 0; i < count; i++, at++) {
            const Passage *passage = &passages[at];
            if (passage->first >= scan->end) return false;
            bool starts = passage->first >= scan->next;
            if (passage->first > scan->next) add_span(meaning, scan->shift + scan->next, false, NAN);
            uint32_t first = starts ? passage->first : scan->next, end = passage->first + passage->count;
            if (starts) scan->start = meaning->count;
            else if (scan->start != NO_SPAN) add_continued(meaning, scan->start);
            add_span(meaning, scan->shift + first, starts, cosine_of(meaning, passage->scale, products[i]));
            scan->next = end < scan->end ? end : scan->end;
            if (end >= scan->end) return false;
        }
    }
    return true;
}

static void scan_run(Scan *scan, const Document *document, uint32_t number) {
    Progress *progress = &scan->progress[number % PROGRESS];
    bool known = progress->document == number;
    const Vectors *part = known ? progress->part : document->vectors;
    scan->start = known ? progress->start : NO_SPAN;
    while (part && scan->next < scan->end) {
        bool through = scan_part(scan, part);
        *progress = (Progress){number, part, scan->start};
        if (!through) break;
        part = part->next;
    }
    if (scan->next < scan->end) add_span(scan->meaning, scan->shift + scan->next, false, NAN);
}

/* The scan reads up to AHEAD runs before it needs them (Coming), because their documents and vectors are at distant
 * addresses. It prefetches the memory of each run in three steps. When the scan reads the run, it prefetches the
 * document. After STEP more runs, it prefetches the first part of the document's vectors. After another STEP runs, it
 * prefetches the first LINES cache lines (of LINE bytes) of the values of this part. */
enum { AHEAD = 16, STEP = 5, LINE = 64, LINES = 32 };

typedef struct Coming {
    RunsAt at;
    Place runs[AHEAD];
    unsigned first, count; /* the position of the next run, and the number of runs */
} Coming;

static Place *coming_at(Coming *coming, unsigned number) { return &coming->runs[(coming->first + number) % AHEAD]; }

static const Vectors *vectors_of(const Meaning *meaning, const Place *place) {
    const Document *document = document_at(meaning->index, place->document);
    return vectors_complete(document, meaning->encoder) ? document->vectors : NULL;
}

/* Reads one more run, if it starts before the id `end`, and prefetches data of the runs before it. */
static void read_ahead(const Meaning *meaning, Coming *coming, uint64_t end) {
    Place place;
    if (coming->count < AHEAD && runs_next(meaning->index, &coming->at, &place) && place.first < end) {
        *coming_at(coming, coming->count++) = place;
        __builtin_prefetch(document_at(meaning->index, place.document));
    } else {
        coming->at = (RunsAt){UINT32_MAX, 0};
    }
    if (coming->count > STEP) {
        const Document *document = document_at(meaning->index, coming_at(coming, coming->count - 1 - STEP)->document);
        const char *vectors = (const char *)document->vectors;
        __builtin_prefetch(vectors);
        __builtin_prefetch(vectors + LINE);
    }
    if (coming->count > 2 * STEP) {
        const Vectors *vectors = vectors_of(meaning, coming_at(coming, coming->count - 1 - 2 * STEP));
        const char *values = vectors ? (const char *)part_values(vectors) : NULL;
        for (unsigned i = 0; values && i < LINES; i++) __builtin_prefetch(values + i * LINE);
    }
}

void meaning_scan(Meaning *meaning, uint64_t first, uint64_t end, MeaningAdmits admits, void *context) {
    const Index *index = meaning->index;
    Scan scan = {.meaning = meaning};
    Coming coming = {.at = runs_at(index, first)};
    for (unsigned i = 0; i < PROGRESS; i++) scan.progress[i].document = NO_ITEM;
    add_span(meaning, first, false, NAN);
    if (meaning->encoder == NO_ENCODER) return;
    for (unsigned i = 0; i < AHEAD; i++) read_ahead(meaning, &coming, end);
    for (; coming.count; read_ahead(meaning, &coming, end)) {
        Place place = *coming_at(&coming, 0);
        coming.first++;
        coming.count--;
        uint64_t from = place.first > first ? place.first : first, to = place.end < end ? place.end : end;
        if (place.sentence == 0 && from == place.first) from++; /* the document's own id */
        if (from >= to) continue;
        const Document *document = document_at(index, place.document);
        if (!vectors_complete(document, meaning->encoder) || !admits(context, place.document)) {
            add_span(meaning, from, false, NAN);
            continue;
        }
        scan.shift = place.first + 1 - place.sentence;
        scan.next = (uint32_t)(from - scan.shift);
        scan.end = (uint32_t)(to - scan.shift);
        scan_run(&scan, document, place.document);
    }
    add_span(meaning, end, false, NAN);
}

double meaning_most(Meaning *meaning, uint64_t first, uint64_t end) {
    double most = -INFINITY;
    for (size_t at = meaning_find(meaning, first); at < meaning->count && meaning->spans[at].id < end; at++) {
        double here = meaning_weigh(meaning->vector, meaning->spans[at].cosine);
        if (here > most) most = here;
    }
    return most;
}

double meaning_of_sentence(const Meaning *meaning, const Document *document, uint32_t sentence, uint32_t *first,
                           uint32_t *count) {
    *first = sentence;
    *count = 1;
    if (meaning->encoder == NO_ENCODER || !vectors_complete(document, meaning->encoder)) return NAN;
    for (const Vectors *part = document->vectors; part; part = part->next) {
        const Passage *passages = part->passages;
        uint32_t at = passage_from(passages, part->count, sentence);
        if (at == part->count) continue;
        if (passages[at].first > sentence) return NAN;
        int32_t product;
        meaning->dot(meaning->query, part_values(part) + at * meaning->bytes, 1, meaning->bytes, &product);
        *first = passages[at].first;
        *count = passages[at].count;
        return cosine_of(meaning, passages[at].scale, product);
    }
    return NAN;
}

double meaning_of_document(const Meaning *meaning, const Document *document) {
    int32_t products[BATCH];
    double most = NAN;
    for (const Vectors *part = document->vectors; part; part = part->next)
        for (uint32_t at = 0; at < part->count; at += BATCH) {
            uint32_t count = part->count - at < BATCH ? part->count - at : BATCH;
            meaning->dot(meaning->query, part_values(part) + at * meaning->bytes, count, meaning->bytes, products);
            for (uint32_t i = 0; i < count; i++) {
                double here = cosine_of(meaning, part->passages[at + i].scale, products[i]);
                if (!(here <= most)) most = here;
            }
        }
    return most;
}

uint64_t meaning_bytes(const Meaning *meaning, const uint32_t *documents, size_t count) {
    const Index *index = meaning->index;
    uint64_t passages = 0;
    if (meaning->encoder == NO_ENCODER) return 0;
    if (!documents) return index->encoders[meaning->encoder].passages * meaning->bytes;
    for (size_t i = 0; i < count; i++) {
        const Document *document = document_at(index, documents[i]);
        if (vectors_complete(document, meaning->encoder)) passages += document->vectors->stored;
    }
    return passages * meaning->bytes;
}

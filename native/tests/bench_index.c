/* Measures the index on a random corpus with Zipf's law: bench_index [sentences [sentences per document [questions]]].
 * `questions` is the number of questions in each measurement after the vectors have been attached.
 *
 * The corpus has 600,000 different terms. The probability of a term of rank r is proportional to 1 / (r + 50)^1.4. The
 * model for the corpus is a million sentences of Debian's documentation. The frequent terms have the same distribution
 * as in these sentences. But the corpus has one third more different rare terms than these sentences. A sentence has 8
 * terms on average, and each document has 20 sentences by default.
 *
 * There are two kinds of questions. A natural question has 4 to 6 terms, usually of one sentence, because the terms of
 * one sentence often occur together. The other kind has six common terms: random terms of the 40 most frequent terms.
 *
 * Times are the CPU time of the process, because other processes use the machine, too. The memory of a sentence is the
 * memory of the index without the documents' ids, divided by the number of sentences. */
#include "index/index.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DIMS = 384, PASSAGE = 5 };
enum { VOCABULARY = 600000, QUESTIONS = 2000, MAX_TERMS = 24, KEPT = 4096 };
enum { SENTENCE_BYTES = 3 + MAX_TERMS * 18 };

static uint64_t state = 88172645463325252ULL;
static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
static double uniform(void) { return (double)(next() >> 11) / (double)(1ULL << 53); }

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static double *cumulated;
static char (*names)[16];

static void make_vocabulary(void) {
    cumulated = malloc(VOCABULARY * sizeof *cumulated);
    names = malloc(VOCABULARY * sizeof *names);
    double sum = 0;
    for (unsigned i = 0; i < VOCABULARY; i++) {
        sum += pow(i + 50.0, -1.4);
        cumulated[i] = sum;
        /* Terms have the length of stems: 3 to 12 letters. Rare terms are longer. */
        int length = 3 + (int)(next() % 4) + (i > 1000 ? (int)(next() % 3) : 0) + (i > 30000 ? (int)(next() % 3) : 0);
        unsigned number = i;
        for (int j = 0; j < length; j++, number /= 26) names[i][j] = (char)('a' + (number ? number % 26 : next() % 26));
        names[i][length] = 0;
        snprintf(names[i] + (length > 4 ? 4 : length), 8, "%x", i); /* the names become distinct */
    }
    for (unsigned i = 0; i < VOCABULARY; i++) cumulated[i] /= sum;
}

static unsigned draw(void) {
    double point = uniform();
    unsigned low = 0, high = VOCABULARY - 1;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (cumulated[middle] < point) low = middle + 1;
        else high = middle;
    }
    return low;
}

typedef struct Sentence {
    unsigned terms[MAX_TERMS];
    unsigned count;
} Sentence;
static Sentence kept[KEPT];

/* Draws a sentence and packs it. Returns the end of its bytes. */
static uint8_t *draw_sentence(uint8_t *at, Sentence *sentence) {
    unsigned length = 3 + (unsigned)(-log(1 - uniform()) * 5.6), count = 0, frequencies[MAX_TERMS];
    if (length > MAX_TERMS) length = MAX_TERMS;
    for (unsigned i = 0; i < length; i++) {
        unsigned term = draw(), j = 0;
        while (j < count && sentence->terms[j] != term) j++;
        if (j < count) {
            frequencies[j]++;
            continue;
        }
        sentence->terms[count] = term;
        frequencies[count++] = 1;
    }
    sentence->count = count;
    *at++ = (uint8_t)length;
    *at++ = (uint8_t)count;
    for (unsigned i = 0; i < count; i++) {
        const char *name = names[sentence->terms[i]];
        *at++ = (uint8_t)frequencies[i];
        *at++ = (uint8_t)strlen(name);
        at = (uint8_t *)stpcpy((char *)at, name);
    }
    return at;
}

static int by_value(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

static void report(const char *what, double *times, size_t count) {
    qsort(times, count, sizeof *times, by_value);
    printf("%-44s p50 %8.3f ms   p99 %8.3f ms   most %8.3f ms\n", what, times[count / 2] / 1e3,
           times[count * 99 / 100] / 1e3, times[count - 1] / 1e3);
}

static unsigned questions = QUESTIONS;
static bool no_words;
static IndexVector *vector; /* NULL: rank by words */

/* Draws a vector with a length of about 1: one of 64 random topics, plus noise. So the cosines vary as for real texts.
 * Returns the scale of the vector. */
static float draw_vector(int8_t *values) {
    static int8_t topics[64][DIMS];
    static bool made;
    double sum = 0;
    for (unsigned i = 0; !made && i < 64 * DIMS; i++) topics[i / DIMS][i % DIMS] = (int8_t)(next() % 121 - 60);
    made = true;
    const int8_t *topic = topics[next() % 64];
    for (unsigned i = 0; i < DIMS; i++) {
        values[i] = (int8_t)(topic[i] * 0.7 + (double)(next() % 121) - 60);
        sum += (double)values[i] * values[i];
    }
    return (float)(1 / sqrt(sum));
}

/* Attaches vectors to all documents: one passage for every five sentences. `each` is the number of sentences of a
 * document. */
static void embed(Index *index, unsigned documents, unsigned each) {
    static uint8_t packed[1000 * (12 + DIMS)];
    uint32_t total = each / PASSAGE;
    char problem[INDEX_PROBLEM], id[32];
    double longest = 0, all = 0;
    size_t before = index_memory(index);
    for (unsigned number = 0; number < documents; number++) {
        for (uint32_t i = 0; i < total; i++) {
            uint8_t *at = packed + i * (12 + DIMS);
            uint32_t numbers[2] = {i * PASSAGE, PASSAGE};
            memcpy(at, numbers, 8);
            float scale = draw_vector((int8_t *)at + 12);
            memcpy(at + 8, &scale, 4);
        }
        IndexEmbedding embedding = {(const uint8_t *)"encoder1", DIMS, 0, total, packed, total * (12 + DIMS)};
        int length = snprintf(id, sizeof id, "document-%u", number);
        double start = now_us();
        if (index_embed(index, id, (size_t)length, &embedding, problem) != INDEX_OK) exit(1);
        double took = now_us() - start;
        all += took;
        if (took > longest) longest = took;
    }
    double passages = (double)documents * total, bytes = (double)(index_memory(index) - before);
    printf("vectors: %.0f passages, %.1f bytes a passage, %.1f a sentence; attaching %.3f us a passage, longest call "
           "%.3f ms\n",
           passages, bytes / passages, bytes / documents / each, all / passages, longest / 1e3);
}

static void ask(Index *index, const char *what, bool common, size_t k, const IndexFilter *filter) {
    static double times[QUESTIONS], weights[INDEX_MAX_HITS * 32];
    static IndexHit hits[INDEX_MAX_HITS];
    for (unsigned q = 0; q < questions; q++) {
        IndexTerm terms[8];
        uint64_t frequencies[8];
        unsigned count = 0, wanted = common ? 6 : 4 + (unsigned)(next() % 3);
        const Sentence *sentence = &kept[next() % KEPT];
        for (unsigned tries = 0; count < wanted && tries < 100; tries++) {
            unsigned term = common                    ? (unsigned)(next() % 40)
                            : count < sentence->count ? sentence->terms[count]
                                                      : draw(),
                     i = 0;
            while (i < count && terms[i].bytes != names[term]) i++;
            if (i == count) terms[count++] = (IndexTerm){names[term], strlen(names[term]), 0};
        }
        IndexQuery query = {.terms = terms, .count = count, .k = k, .filter = filter, .vector = vector};
        int8_t values[DIMS];
        if (vector) {
            vector->scale = draw_vector(values);
            vector->values = values;
            if (no_words) query.count = 0;
        }
        IndexRanking ranking = {.hits = hits, .weights = weights, .frequencies = frequencies};
        double start = now_us();
        if (index_rank(index, &query, &ranking) != INDEX_OK) exit(1);
        times[q] = now_us() - start;
    }
    report(what, times, questions);
}

static double longest_step, total_steps;
static uint64_t steps;
static double timed(double start) {
    double took = now_us() - start;
    if (took > longest_step) longest_step = took;
    total_steps += took;
    steps++;
    return took;
}

static void add_document(Index *index, unsigned number, unsigned sentences, bool keep, double *adding) {
    static uint8_t packed[1000 * SENTENCE_BYTES];
    uint8_t *end = packed;
    char id[32];
    Sentence scratch;
    for (unsigned i = 0; i < sentences; i++) {
        Sentence *sentence = keep && next() % 64 == 0 ? &kept[next() % KEPT] : &scratch;
        end = draw_sentence(end, sentence);
    }
    int length = snprintf(id, sizeof id, "document-%u", number);
    uint8_t fields[] = {1, 0, 4, 'y', 'e', 'a', 'r', 1, 0, 'n', 0, 0, 0, 0, 0, 0, (uint8_t)(number % 10), 64};
    IndexPending *pending;
    double start = now_us();
    IndexStatus status = index_begin(index, id, (size_t)length, fields, sizeof fields, &pending);
    if (status == INDEX_OK) status = index_add(pending, packed, (size_t)(end - packed), sentences);
    if (status == INDEX_OK) status = index_commit(pending);
    if (status != INDEX_OK) exit(1);
    *adding += timed(start);
}

static bool count_bytes(void *context, const void *bytes, size_t length) {
    (void)bytes;
    *(size_t *)context += length;
    return true;
}

int main(int argc, char **argv) {
    unsigned sentences = argc > 1 ? (unsigned)atoi(argv[1]) : 1000000, each = argc > 2 ? (unsigned)atoi(argv[2]) : 20;
    uint64_t key[2] = {1, 2};
    Index *index = index_new((IndexAllocator){malloc, free}, key);
    double adding = 0;
    make_vocabulary();
    for (unsigned i = 0; i < KEPT; i++) {
        uint8_t packed[SENTENCE_BYTES];
        draw_sentence(packed, &kept[i]);
    }
    unsigned documents = sentences / each;
    for (unsigned i = 0; i < documents; i++) add_document(index, i, each, true, &adding);
    IndexCounts counts = index_counts(index);
    double count = (double)counts.sentences;
    printf("%u sentences in %u documents, %.2f postings each, %llu distinct terms\n", (unsigned)counts.sentences,
           documents, (double)counts.postings / count, (unsigned long long)counts.distinct_terms);
    printf("memory: %.2f bytes a sentence without document ids (%.2f); indexing: %.3f us a sentence, longest call %.3f "
           "ms\n",
           (double)(counts.bytes - counts.document_id_bytes) / count, (double)counts.document_id_bytes / count,
           adding / count, longest_step / 1e3);
    ask(index, "natural question, 8 best", false, 8, NULL);
    ask(index, "natural question, 100 best", false, 100, NULL);
    ask(index, "six common terms, 8 best", true, 8, NULL);
    ask(index, "six common terms, 1000 best", true, 1000, NULL);
    if (argc > 3) questions = (unsigned)atoi(argv[3]);
    embed(index, documents, each);
    ask(index, "with vectors, by words only: natural, 8 best", false, 8, NULL);
    IndexVector by = {
        .digest = (const uint8_t *)"encoder1", .dims = DIMS, .weight = 40, .missing = 0.1, .scan_bytes = UINT64_MAX};
    vector = &by;
    ask(index, "by both: natural, 50 best", false, 50, NULL);
    ask(index, "by both: six common terms, 50 best", true, 50, NULL);
    no_words = true;
    ask(index, "by meaning only, 50 best", false, 50, NULL);
    no_words = false;
    vector = NULL;
    uint8_t tenth[] = {'=', 4, 'y', 'e', 'a', 'r', 'n', 0, 0, 0, 0, 0, 0, 3, 64};
    IndexFilter *filter = index_filter_new(index, tenth, sizeof tenth);
    ask(index, "natural question, 8 best of a tenth", false, 8, filter);
    ask(index, "six common terms, 8 best of a tenth", true, 8, filter);
    index_filter_free(index, filter);
    size_t saved = 0;
    double start = now_us();
    index_save(index, count_bytes, &saved);
    printf("save: %.1f ms, %.2f bytes a sentence\n", (now_us() - start) / 1e3, (double)saved / count);

    /* Replaces a third of the documents, with maintenance in between. */
    double maintaining = 0;
    longest_step = total_steps = 0, steps = 0;
    double longest_maintain = 0, longest_remove = 0;
    for (unsigned i = 0; i < documents / 3; i++) {
        char id[32];
        unsigned number = i * 3;
        int length = snprintf(id, sizeof id, "document-%u", number);
        start = now_us();
        if (index_remove(index, id, (size_t)length) != INDEX_OK) exit(1);
        double took = now_us() - start;
        if (took > longest_remove) longest_remove = took;
        add_document(index, number, each, false, &adding);
        start = now_us();
        index_maintain(index, 10000);
        took = now_us() - start;
        maintaining += took;
        if (took > longest_maintain) longest_maintain = took;
    }
    counts = index_counts(index);
    printf("replaced %u documents: longest remove %.3f ms, longest maintain(10000) %.3f ms, maintenance %.3f us a "
           "sentence\n",
           documents / 3, longest_remove / 1e3, longest_maintain / 1e3, maintaining / (documents / 3 * each));
    printf("memory after: %.2f bytes a sentence, %.1f %% of postings dead\n",
           (double)(counts.bytes - counts.document_id_bytes) / count,
           100.0 * (double)counts.dead_postings / (double)counts.postings);
    ask(index, "natural question after replacing, 8 best", false, 8, NULL);
    index_free(index);
    free(names);
    free(cumulated);
    return 0;
}

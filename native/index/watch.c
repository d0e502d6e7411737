/* Watched questions: finds the cached answers that a write may change.
 *
 * WHAT IS WATCHED. The best sentences of a ranking determine an answer. The answer stays valid under three conditions:
 * - The documents of these sentences are unchanged.
 * - The idf of the question's terms stays about the same.
 * - No new sentence reaches the score of the last ranked sentence.
 * So a watched question has this score, these documents, its terms with their idf, bounds for the document frequencies
 * of the terms in this index, and bounds for the number of sentences of this index. The caller chooses the bounds: if
 * every index of the corpus stays within its bounds, the idf of the whole corpus stays about the same.
 *
 * THE COST OF A WRITE is small for any number of questions. LOOKS_PER_WRITE limits the number of questions that a write
 * checks. The write drops further questions without a check, which is always correct. A hash table finds the watched
 * terms of a new sentence: the terms that are also in watched questions. Usually a sentence has no watched term. The
 * write checks only the questions for which a watched term of the sentence is *essential*. As in MaxScore, the terms of
 * a question with the lowest contributions are not essential if a sentence that contains all of them, and no other term
 * of the question, cannot reach the score. For a sentence with an essential term, the write computes the score as in
 * the ranking.
 * A write also compares document frequencies with their bounds, but only for the terms of the sentences that it adds or
 * removes. Each term has the narrowest bounds of all its questions. When a frequency leaves these bounds, the write
 * compares the bounds of all questions once.
 *
 * LONG DOCUMENTS arrive in parts (open.c) and must not block a write either. Each part is compared with the watched
 * questions when the part arrives. If a question is asked while a document is open, the new question is compared with
 * the received parts. So the commit has no sentences left to compare. The terms of the document are counted in steps
 * (documents.c). Before the counting has ended, rankings use the earlier document frequencies, and answers from these
 * rankings are valid. After the counting, a review compares the frequencies of all watched terms with their bounds,
 * also in steps.
 *
 * MANY QUESTIONS may have been answered from one removed document. Before the reply to the removal, all these questions
 * are dropped, and the clients that cache their answers are notified. A report for each of very many questions would
 * take as long as all other work of the write. So for more than INDEX_TOLD_BY_NAME questions there is one report for
 * all of them. The memory of these questions is freed in steps (questions.c).
 *
 * VECTORS. If a question has a vector, a score is the sum of a score by words and a contribution of meaning. New
 * sentences have no vectors yet, so their score uses `missing` of IndexVector as the cosine. When vectors are attached
 * to a document, the document's passages are compared with the questions that have a vector. First, an upper bound of
 * the document's scores, from its words and its highest cosine, is compared with the score of the question. If the
 * bound reaches the score, the write ranks the sentences of this document for the question. The number of these
 * comparisons is limited, too; the write drops further questions. If vectors were attached after the ranking of a
 * question, the question is compared with these vectors before it is watched.
 *
 * Watched questions are not saved. A service that may have missed a report must ask whether the question of a cached
 * answer is still watched with the same token. */
#include "index/questions.h"

#include <math.h>
#include <stdlib.h>

#include "index/codes.h"
#include "index/dictionary.h"
#include "index/documents.h"
#include "index/filter.h"
#include "index/meaning.h"
#include "index/memory.h"
#include "index/open.h"
#include "index/runs.h"
#include "index/sentences.h"
#include "index/vectors.h"

/* The maximum number of questions that a write checks, which takes some milliseconds. The write drops further questions
 * without a check. */
enum { LOOKS_PER_WRITE = 100000 };
/* A write looks up the terms of a document's forward list one by one if the list has at most REVIEW_BYTES bytes, which
 * takes 1 to 2 ms. TERM_UNITS is the cost of one term in a review, in units. */
enum { REVIEW_BYTES = 16384, TERM_UNITS = 10 };

/* The maximum number of overdue terms (index.h) that a write counts, which takes about 2 ms. */
enum { WORK_PER_WRITE = 16384 };

/* Counts overdue terms. True: all terms are counted, so the document frequencies are exact. */
static bool finish_work(Index *index) {
    int64_t budget = WORK_PER_WRITE;
    documents_work(index, &budget);
    return !index->work;
}

static bool is_within(uint64_t number, uint64_t fewest, uint64_t most) { return fewest <= number && number <= most; }

static uint64_t frequency_in(const Index *index, const void *bytes, size_t length) {
    bool fits = length && length <= INDEX_MAX_TERM;
    uint32_t term = fits ? dictionary_find(index, bytes, length) : NO_ITEM;
    return term == NO_ITEM ? 0 : entry_at(index, term)->df;
}

/* True: the best sentence that the query finds reaches `score`, so this sentence may change the answer. */
static bool is_concerned(Index *index, const IndexQuery *query, double score) {
    IndexHit best;
    double weights[INDEX_MAX_QUESTION_TERMS];
    uint64_t frequencies[INDEX_MAX_QUESTION_TERMS];
    IndexRanking ranking = {.hits = &best, .weights = weights, .frequencies = frequencies};
    return index_rank(index, query, &ranking) != INDEX_OK || (ranking.count && best.total >= score);
}

/* True: a ranking reads all vectors of the question's encoder, because they have at most `scan_bytes` bytes. */
static bool reads_all(Index *index, const IndexVector *vector) {
    uint32_t encoder = encoder_find(index, vector->digest);
    return encoder == NO_ENCODER ||
           index->encoders[encoder].passages * vector_bytes(index->encoders[encoder].dims) <= vector->scan_bytes;
}

static bool answers_from(const IndexWatched *asked, uint64_t place) {
    for (size_t i = 0; i < asked->document_count; i++)
        if (asked->documents[i].place == place) return true;
    return false;
}

/* True: vectors that were attached after the ranking may change the ranking. */
static bool is_concerned_by_vectors(Index *index, const IndexWatched *asked, IndexQuery query) {
    if (!asked->vector) return false;
    if (asked->since < index->embedded_from || !reads_all(index, asked->vector)) return true;
    uint64_t count = index->embedded_count < RECENT_EMBEDDED ? index->embedded_count : RECENT_EMBEDDED;
    for (uint64_t i = 0; i < count; i++) {
        const Embedded *embedded = &index->embedded[i];
        query.place = &embedded->head;
        if (embedded->id < asked->since || runs_find(index, embedded->head).document == NO_ITEM) continue;
        if (answers_from(asked, embedded->head) || is_concerned(index, &query, asked->score)) return true;
    }
    return false;
}

/* True: the changes of the index since the ranking have not changed the answer, and a commit of the open documents
 * would not change the answer. Counts may have changed within the bounds of `asked`. False: the answer may have changed
 * or may change, or a long document is still being counted. */
static bool stands(Index *index, const IndexWatched *asked) {
    IndexTerm terms[INDEX_MAX_QUESTION_TERMS];
    if (asked->since < index->committed_late || !finish_work(index) ||
        !is_within(index->sentences, asked->fewest, asked->most))
        return false;
    for (size_t i = 0; i < asked->term_count; i++) {
        const IndexWatchedTerm *term = &asked->terms[i];
        if (!is_within(frequency_in(index, term->bytes, term->length), term->fewest, term->most)) return false;
        terms[i] = (IndexTerm){term->bytes, term->length, term->frequency};
    }
    for (size_t i = 0; i < asked->document_count; i++) {
        uint32_t number = document_find(index, asked->documents[i].id, asked->documents[i].length);
        if (number == NO_ITEM || document_at(index, number)->head != asked->documents[i].place) return false;
    }
    IndexFilter *filter = NULL;
    if (asked->filter_length && !(filter = index_filter_new(index, asked->filter, asked->filter_length))) return false;
    IndexQuery query = {.terms = terms,
                        .count = asked->term_count,
                        .k = 1,
                        .global = true,
                        .sentences = asked->sentences,
                        .filter = filter,
                        .vector = asked->vector};
    bool concerned = is_concerned_by_vectors(index, asked, query);
    query.since = asked->since;
    concerned = concerned || is_concerned(index, &query, asked->score);
    if (!concerned && index->pending) {
        query.since = open_first(index);
        query.open = true;
        concerned = is_concerned(index, &query, asked->score);
    }
    index_filter_free(index, filter);
    return !concerned;
}

/* The highest contribution of one term of a question to a score. */
typedef struct Gift {
    double most;
    uint32_t use; /* the index of the term in the uses of the question */
} Gift;

static int by_most(const void *a, const void *b) {
    double first = ((const Gift *)a)->most, second = ((const Gift *)b)->most;
    return (first > second) - (first < second);
}

/* Returns what `missing` of the question's vector adds to the score of a sentence without a vector. 0: the question has
 * no vector. */
static double of_missing(const Question *question) {
    return question->vector ? meaning_weigh(question->vector, NAN) : 0;
}

/* Links the question to its essential terms. A sentence without an essential term does not reach the score. */
static void link_essential(IndexWatch *watch, Question *question) {
    Gift gifts[INDEX_MAX_QUESTION_TERMS];
    double sum = 0, roots = 0;
    for (uint32_t i = 0; i < question->terms; i++) gifts[i] = (Gift){code_weight[255] * question->use[i].idf, i};
    qsort(gifts, question->terms, sizeof *gifts, by_most);
    bool essential = false;
    for (uint32_t i = 0; i < question->terms; i++) {
        const Use *use = &question->use[gifts[i].use];
        sum += gifts[i].most;
        roots += code_root[255] * use->root_idf;
        essential = essential || bound(sum, roots) + of_missing(question) >= question->score;
        if (essential) anchor_link(watch, question, gifts[i].use);
    }
}

static void use_term(IndexWatch *watch, Use *use, const IndexWatchedTerm *term, uint64_t sentences) {
    Anchor *anchor = anchor_use(watch, &watch->terms, term->bytes, term->length);
    double idf = term_idf((double)sentences, (double)term->frequency);
    *use = (Use){anchor, NO_LINK, idf, sqrt(idf), term->fewest, term->most};
}

static bool has_document(const Question *question, const Anchor *anchor) {
    for (uint32_t i = question->terms; i < question->uses; i++)
        if (question->use[i].anchor == anchor) return true;
    return false;
}

static void use_document(IndexWatch *watch, Question *question, const void *id, size_t length) {
    Anchor *anchor = anchor_use(watch, &watch->documents, id, length);
    question->use[question->uses] = (Use){.anchor = anchor, .link = NO_LINK};
    anchor_link(watch, question, question->uses++);
}

static void narrow(uint64_t *fewest, uint64_t *most, uint64_t least, uint64_t greatest) {
    if (least > *fewest) *fewest = least;
    if (greatest < *most) *most = greatest;
}

static const uint8_t *filter_of(const Question *question) { return question->name + question->name_length; }

static bool has_same_filter(const Question *before, const IndexWatched *asked) {
    return before->filter_length == asked->filter_length &&
           (!asked->filter_length || !memcmp(filter_of(before), asked->filter, asked->filter_length));
}

static bool has_same_vector(const Question *before, const IndexWatched *asked) {
    const IndexVector *a = before->vector, *b = asked->vector;
    if (!a || !b) return !a && !b;
    return a->dims == b->dims && a->scale == b->scale && a->weight == b->weight && a->missing == b->missing &&
           !memcmp(a->digest, b->digest, INDEX_DIGEST) && !memcmp(a->values, b->values, a->dims);
}

static bool has_same_terms(const IndexWatch *watch, const Question *before, const IndexWatched *asked) {
    if (before->terms != asked->term_count) return false;
    for (uint32_t i = 0; i < before->terms; i++)
        if (before->use[i].anchor != anchor_find(watch, &watch->terms, asked->terms[i].bytes, asked->terms[i].length))
            return false;
    return true;
}

/* A write that would drop the earlier question of the same name must also drop the new question. So the new question
 * gets, from the values of both questions, the greater idf of each term, the lower score, the narrower bounds, and all
 * documents. */
static void take_over(IndexWatch *watch, Question *question, const Question *before) {
    if (before->score < question->score) question->score = before->score;
    narrow(&question->fewest, &question->most, before->fewest, before->most);
    for (uint32_t i = 0; i < question->terms; i++) {
        Use *use = &question->use[i];
        const Use *earlier = &before->use[i];
        narrow(&use->fewest, &use->most, earlier->fewest, earlier->most);
        if (earlier->idf <= use->idf) continue;
        use->idf = earlier->idf;
        use->root_idf = earlier->root_idf;
    }
    for (uint32_t i = before->terms; i < before->uses; i++) {
        const Anchor *anchor = before->use[i].anchor;
        if (!has_document(question, anchor)) use_document(watch, question, anchor->bytes, anchor->length);
    }
}

static void narrow_by(IndexWatch *watch, const Question *question) {
    narrow(&watch->fewest, &watch->most, question->fewest, question->most);
    for (uint32_t i = 0; i < question->terms; i++) {
        const Use *use = &question->use[i];
        narrow(&use->anchor->fewest, &use->anchor->most, use->fewest, use->most);
    }
}

bool index_watch_add(IndexWatch *watch, Index *index, const IndexWatched *asked, size_t limit, int64_t now,
                     void *context) {
    if (!stands(index, asked)) return false;
    while (watch->oldest && watch->oldest->expires <= now) question_expire(watch, watch->oldest);
    Question *before = question_find(watch, asked->name, asked->name_length);
    uint32_t earlier = before ? before->uses - before->terms : 0;
    if (before &&
        (earlier + asked->document_count > INDEX_MAX_WATCHED_DOCUMENTS || !has_same_terms(watch, before, asked) ||
         !has_same_filter(before, asked) || !has_same_vector(before, asked))) {
        question_doom(watch, before);
        before = NULL;
        earlier = 0;
    }
    while (!before && watch->oldest && watch->names.count >= limit) question_doom(watch, watch->oldest);
    uint32_t room = (uint32_t)(asked->term_count + asked->document_count) + earlier;
    Question *question = watch_take(watch, sizeof *question + room * sizeof *question->use + asked->name_length +
                                               asked->filter_length);
    *question = (Question){.node.hash = hash_bytes(watch->key, asked->name, asked->name_length),
                           .token = asked->token,
                           .expires = asked->expires,
                           .score = asked->score,
                           .fewest = asked->fewest,
                           .most = asked->most,
                           .terms = (uint32_t)asked->term_count,
                           .uses = (uint32_t)asked->term_count,
                           .name_length = (uint32_t)asked->name_length,
                           .filter_length = (uint32_t)asked->filter_length};
    for (uint32_t i = 0; i < question->terms; i++)
        use_term(watch, &question->use[i], &asked->terms[i], asked->sentences);
    for (size_t i = 0; i < asked->document_count; i++)
        use_document(watch, question, asked->documents[i].id, asked->documents[i].length);
    if (before) {
        take_over(watch, question, before);
        question_forget(watch, before);
    }
    /* A document of both questions needs only one use. So fewer uses may be needed than were allocated. */
    watch->memory -= (room - question->uses) * sizeof *question->use;
    question->name = (uint8_t *)&question->use[question->uses];
    memcpy(question->name, asked->name, asked->name_length);
    if (asked->filter_length) memcpy(question->name + asked->name_length, asked->filter, asked->filter_length);
    if (asked->vector) question->vector = question_vector(watch, asked->vector);
    link_essential(watch, question);
    question_join(watch, question);
    narrow_by(watch, question);
    questions_tell(watch, context);
    return true;
}

void index_watch_expire(IndexWatch *watch, int64_t now) {
    for (Question *question = watch->oldest, *next; question; question = next) {
        next = question->newer;
        if (question->expires <= now) question_expire(watch, question);
    }
}

uint64_t index_watch_token(const IndexWatch *watch, const void *name, size_t length, int64_t now) {
    const Question *question = question_find(watch, name, length);
    return question && question->expires > now ? question->token : 0;
}

/* ---- Writes ---- */

static void begin_review(IndexWatch *watch) {
    watch->review = true;
    watch->reviewed = 0;
    watch->review_size = watch->terms.size;
}

/* Touches (questions.h) the watched terms of a forward list. If the list has more than REVIEW_BYTES bytes, starts a
 * review of all watched terms instead. */
static void touch_terms(IndexWatch *watch, const Index *index, const uint8_t *at, uint32_t bytes_of_list) {
    const uint8_t *end = at + bytes_of_list;
    uint64_t count;
    if (bytes_of_list > REVIEW_BYTES) {
        begin_review(watch);
        return;
    }
    for (int64_t term = -1; at < end;) {
        at = forward_get(at, &term, &count);
        size_t bytes;
        const uint8_t *text = dictionary_text(index, entry_at(index, (uint32_t)term), &bytes);
        Anchor *anchor = anchor_find(watch, &watch->terms, text, bytes);
        if (anchor) anchor_touch(watch, anchor);
    }
}

void index_watch_removing(IndexWatch *watch, const Index *index, const void *id, size_t length) {
    uint32_t number = watch->oldest ? document_find(index, id, length) : NO_ITEM;
    if (number == NO_ITEM) return;
    const Document *document = document_at(index, number);
    touch_terms(watch, index, document_forward(document), document->forward_bytes);
    const Anchor *anchor = anchor_find(watch, &watch->documents, id, length);
    for (uint32_t i = 0; anchor && i < anchor->count; i++) question_doom(watch, anchor->links[i].question);
}

void index_watch_committing(IndexWatch *watch, const IndexPending *pending) {
    if (watch->oldest) touch_terms(watch, pending->index, pending->forward, pending->forward_used);
}

static double score_here(const IndexWatch *watch, const Question *question) {
    double sum = 0, roots = 0;
    for (uint32_t i = 0; i < question->terms; i++) {
        const Use *use = &question->use[i];
        if (use->anchor->stamp != watch->sentence) continue;
        sum += code_weight[use->anchor->code] * use->idf;
        roots += code_root[use->anchor->code] * use->root_idf;
    }
    return score_of(sum, roots);
}

/* A document that is being added, in the form that filters need. */
typedef struct Arrival {
    Index *index;
    const IndexIncoming *incoming;
    Document *document; /* NULL until a filter needs it */
} Arrival;

static size_t arrival_bytes(const IndexIncoming *incoming) {
    return sizeof(Document) + incoming->id_length + incoming->fields_length;
}

static const Document *document_of(IndexWatch *watch, Arrival *arrival) {
    const IndexIncoming *incoming = arrival->incoming;
    if (arrival->document) return arrival->document;
    Document *document = arrival->document = watch_take(watch, arrival_bytes(incoming));
    *document = (Document){.id_bytes = (uint32_t)incoming->id_length, .field_bytes = (uint32_t)incoming->fields_length};
    memcpy(document->bytes, incoming->id, incoming->id_length);
    if (incoming->fields_length)
        memcpy(document->bytes + incoming->id_length, incoming->fields, incoming->fields_length);
    return document;
}

static bool admits(Index *index, const Question *question, const Document *document) {
    IndexFilter *filter = index_filter_new(index, filter_of(question), question->filter_length);
    bool admitted = filter_matches(filter, document);
    index_filter_free(index, filter);
    return admitted;
}

/* A question stores its filter as bytes. Only admits() compiles the filter, because few sentences reach the score of
 * the question. */
static bool is_admitted(IndexWatch *watch, const Question *question, Arrival *arrival) {
    if (!question->filter_length) return true;
    return admits(arrival->index, question, document_of(watch, arrival));
}

/* Checks the questions that the current sentence may concern. Drops a question if the sentence reaches the question's
 * score and the question's filter admits the document. After LOOKS_PER_WRITE questions in this write, drops each
 * further question without a check. `here` is the list of the sentence's watched terms. */
static void judge(IndexWatch *watch, const Anchor *here, Arrival *arrival) {
    for (; here; here = here->next_here)
        for (uint32_t i = 0; i < here->count; i++) {
            Question *question = here->links[i].question;
            if (question->doomed || question->stamp == watch->sentence) continue;
            question->stamp = watch->sentence;
            if (watch->looks-- <= 0 || (score_here(watch, question) + of_missing(question) >= question->score &&
                                        is_admitted(watch, question, arrival)))
                question_doom(watch, question);
        }
}

void index_watch_adding(IndexWatch *watch, Index *index, const IndexIncoming *incoming) {
    const uint8_t *at = incoming->sentences, *end = at + incoming->sentences_length;
    Arrival arrival = {.index = index, .incoming = incoming};
    while (at < end && watch->oldest) {
        uint32_t terms, count;
        Anchor *here = NULL;
        watch->sentence++;
        at = packed_number(packed_number(at, end, &terms), end, &count);
        for (; count; count--) {
            uint32_t frequency, bytes;
            at = packed_number(packed_number(at, end, &frequency), end, &bytes);
            Anchor *anchor = anchor_find(watch, &watch->terms, at, bytes);
            at += bytes;
            if (!anchor) continue;
            anchor_touch(watch, anchor);
            anchor->stamp = watch->sentence;
            anchor->code = code_of(frequency, terms);
            anchor->next_here = here;
            here = anchor;
        }
        judge(watch, here, &arrival);
    }
    watch_give(watch, arrival.document, arrival_bytes(incoming));
}

/* Drops the question if its filter admits the document with the new fields, but not with the fields before. After
 * LOOKS_PER_WRITE questions in this write, drops each further question with a filter without a check. */
static void judge_filter(IndexWatch *watch, Question *question, const Document *before, Arrival *arrival) {
    if (!question->filter_length || question->doomed || question->stamp == watch->sentence) return;
    question->stamp = watch->sentence;
    if (watch->looks-- <= 0 ||
        (admits(arrival->index, question, document_of(watch, arrival)) && !admits(arrival->index, question, before)))
        question_doom(watch, question);
}

/* Checks the filters of the questions for which `anchor`, a watched term of the document, is essential. Does not
 * compute scores, because a forward list does not say which terms are in the same sentence. */
static void judge_fields(IndexWatch *watch, const Anchor *anchor, const Document *before, Arrival *arrival) {
    for (uint32_t i = 0; i < anchor->count; i++) judge_filter(watch, anchor->links[i].question, before, arrival);
}

void index_watch_changing(IndexWatch *watch, Index *index, const IndexIncoming *incoming) {
    uint32_t number = watch->oldest ? document_find(index, incoming->id, incoming->id_length) : NO_ITEM;
    if (number == NO_ITEM) return;
    const Anchor *own = anchor_find(watch, &watch->documents, incoming->id, incoming->id_length);
    for (uint32_t i = 0; own && i < own->count; i++) question_doom(watch, own->links[i].question);
    Arrival arrival = {.index = index, .incoming = incoming};
    const Document *document = document_at(index, number);
    const uint8_t *at = document_forward(document), *end = at + document->forward_bytes;
    watch->sentence++;
    /* A sentence without any term of a question may reach the score by its meaning. So this loop checks all questions
     * with a vector and a filter. */
    for (Question *question = watch->oldest, *next; question; question = next) {
        next = question->newer;
        if (question->vector) judge_filter(watch, question, document, &arrival);
    }
    /* To look up the terms of a long forward list takes too long. So a change of such a document drops every question
     * that has a filter. */
    if (document->forward_bytes > REVIEW_BYTES)
        for (Question *question = watch->oldest, *next; question; question = next) {
            next = question->newer;
            if (question->filter_length) question_doom(watch, question);
        }
    else
        for (int64_t term = -1; at < end;) {
            uint64_t count;
            size_t bytes;
            at = forward_get(at, &term, &count);
            const uint8_t *text = dictionary_text(index, entry_at(index, (uint32_t)term), &bytes);
            const Anchor *anchor = anchor_find(watch, &watch->terms, text, bytes);
            if (anchor) judge_fields(watch, anchor, document, &arrival);
        }
    watch_give(watch, arrival.document, arrival_bytes(incoming));
}

/* ---- New vectors ---- */

/* Limits for the comparisons after a write has attached vectors to a document: the number of dot products (all
 * PRODUCTS_PER_WRITE take some milliseconds), and the number of rankings of this document. */
enum { PRODUCTS_PER_WRITE = 200000, RANKINGS_PER_WRITE = 100 };

/* A document whose vectors have changed. */
typedef struct Changed {
    Index *index;
    const Document *document;
    bool knows_words;           /* mark_terms() has marked the watched terms of the document */
    int64_t products, rankings; /* the remaining dot products and rankings */
} Changed;

/* Marks the watched terms of the document: each gets the current stamp, and 255, the highest code. Then score_here()
 * returns an upper bound of the scores of the document's sentences. False: the forward list of the document is too
 * long, and no term is marked. */
static bool mark_terms(IndexWatch *watch, const Index *index, const Document *document) {
    const uint8_t *at = document_forward(document), *end = at + document->forward_bytes;
    uint64_t count;
    watch->sentence++;
    if (document->forward_bytes > REVIEW_BYTES) return false;
    for (int64_t term = -1; at < end;) {
        at = forward_get(at, &term, &count);
        size_t bytes;
        const uint8_t *text = dictionary_text(index, entry_at(index, (uint32_t)term), &bytes);
        Anchor *anchor = anchor_find(watch, &watch->terms, text, bytes);
        if (!anchor) continue;
        anchor->stamp = watch->sentence;
        anchor->code = 255;
    }
    return true;
}

/* Returns the maximum contribution of meaning to the scores of the document's sentences. */
static double most_by_meaning(Changed *changed, const IndexVector *vector) {
    Meaning meaning;
    double most = meaning_weigh(vector, NAN);
    meaning_open(&meaning, changed->index, vector);
    if (meaning.encoder != NO_ENCODER && vectors_complete(changed->document, meaning.encoder)) {
        double here = meaning_weigh(vector, meaning_of_document(&meaning, changed->document));
        if (here > most) most = here;
        changed->products -= changed->document->vectors->stored;
    }
    meaning_close(&meaning);
    return most;
}

static bool may_reach(Changed *changed, const IndexWatch *watch, const Question *question) {
    IndexTerm terms[INDEX_MAX_QUESTION_TERMS];
    const IndexVector *vector = question->vector;
    if (changed->products <= 0 || changed->rankings <= 0 || !reads_all(changed->index, vector)) return true;
    changed->products--;
    if (changed->knows_words &&
        score_here(watch, question) * SAFETY + most_by_meaning(changed, vector) < question->score)
        return false;
    changed->rankings--;
    for (uint32_t i = 0; i < question->terms; i++) {
        const Anchor *anchor = question->use[i].anchor;
        terms[i] = (IndexTerm){.bytes = anchor->bytes, .length = anchor->length};
    }
    uint64_t place = changed->document->head;
    IndexFilter *filter = question->filter_length
                              ? index_filter_new(changed->index, filter_of(question), question->filter_length)
                              : NULL;
    IndexQuery query = {
        .terms = terms, .count = question->terms, .k = 1, .filter = filter, .vector = vector, .place = &place};
    double idf[INDEX_MAX_QUESTION_TERMS];
    for (uint32_t i = 0; i < question->terms; i++) idf[i] = question->use[i].idf;
    query.idf = idf;
    bool reaches = is_concerned(changed->index, &query, question->score);
    index_filter_free(changed->index, filter);
    return reaches;
}

void index_watch_embedded(IndexWatch *watch, Index *index, const void *id, size_t length) {
    uint32_t number = watch->oldest ? document_find(index, id, length) : NO_ITEM;
    if (number == NO_ITEM) return;
    Changed changed = {.index = index,
                       .document = document_at(index, number),
                       .products = PRODUCTS_PER_WRITE,
                       .rankings = RANKINGS_PER_WRITE};
    changed.knows_words = mark_terms(watch, index, changed.document);
    const Anchor *anchor = anchor_find(watch, &watch->documents, id, length);
    for (uint32_t i = 0; anchor && i < anchor->count; i++)
        if (anchor->links[i].question->vector) question_doom(watch, anchor->links[i].question);
    for (Question *question = watch->oldest, *next; question; question = next) {
        next = question->newer;
        if (question->vector && may_reach(&changed, watch, question)) question_doom(watch, question);
    }
}

/* ---- The end of a write ---- */

/* Marks the touched terms whose document frequency is outside the term's bounds (`out`). True: there are such terms. */
static bool find_out(IndexWatch *watch, const Index *index) {
    bool any = false;
    for (Anchor *anchor = watch->touched; anchor; anchor = anchor->next_touched) {
        anchor->frequency = frequency_in(index, anchor->bytes, anchor->length);
        anchor->out = anchor->users && !is_within(anchor->frequency, anchor->fewest, anchor->most);
        if (!anchor->out) continue;
        anchor->fewest = 0;
        anchor->most = UINT64_MAX;
        any = true;
    }
    return any;
}

/* Drops the questions with a document frequency, or the number of sentences, outside the question's own bounds. Then
 * computes the narrowest bounds of the remaining questions. */
static void check_bounds(IndexWatch *watch, uint64_t sentences) {
    watch->fewest = 0;
    watch->most = UINT64_MAX;
    for (Question *question = watch->oldest, *next; question; question = next) {
        next = question->newer;
        bool within = is_within(sentences, question->fewest, question->most);
        for (uint32_t i = 0; i < question->terms && within; i++) {
            const Use *use = &question->use[i];
            within = !use->anchor->out || is_within(use->anchor->frequency, use->fewest, use->most);
        }
        if (within) narrow_by(watch, question);
        else question_doom(watch, question);
    }
}

static void forget_touched(IndexWatch *watch) {
    for (Anchor *anchor = watch->touched, *next; anchor; anchor = next) {
        next = anchor->next_touched;
        anchor->touched = anchor->out = false;
        anchor_free_unused(watch, &watch->terms, anchor);
    }
    watch->touched = NULL;
}

void index_watch_settle(IndexWatch *watch, Index *index, void *context) {
    bool counted = finish_work(index), out = counted && find_out(watch, index);
    if (!counted) begin_review(watch);
    if (out || !is_within(index->sentences, watch->fewest, watch->most)) check_bounds(watch, index->sentences);
    questions_tell(watch, context);
    forget_touched(watch);
    watch->looks = LOOKS_PER_WRITE;
}

bool index_watch_in_review(const IndexWatch *watch) { return watch->review && watch->oldest; }

bool index_watch_review(IndexWatch *watch, Index *index, int64_t budget, void *context) {
    documents_work(index, &budget);
    if (index->work) return index_watch_in_review(watch);
    if (watch->review_size != watch->terms.size)
        begin_review(watch); /* the table has a different number of buckets now */
    for (; watch->review && watch->reviewed < watch->review_size && budget > 0; watch->reviewed++, budget--)
        for (Node *node = watch->terms.buckets[watch->reviewed]; node; node = node->next, budget -= TERM_UNITS)
            anchor_touch(watch, (Anchor *)node);
    if (find_out(watch, index)) check_bounds(watch, index->sentences);
    questions_tell(watch, context);
    forget_touched(watch);
    if (watch->reviewed == watch->review_size) watch->review = false;
    return index_watch_in_review(watch);
}

/* ---- The whole ---- */

IndexWatch *index_watch_new(IndexAllocator allocator, const uint64_t key[2], IndexDropped dropped) {
    codes_prepare();
    IndexWatch *watch = allocator.alloc(sizeof *watch);
    *watch = (IndexWatch){.allocator = allocator,
                          .memory = sizeof *watch,
                          .dropped = dropped,
                          .most = UINT64_MAX,
                          .key = {key[0], key[1]},
                          .looks = LOOKS_PER_WRITE};
    return watch;
}

void index_watch_clear(IndexWatch *watch, void *context) {
    while (watch->oldest) question_doom(watch, watch->oldest);
    questions_tell(watch, context);
    forget_touched(watch);
}

void index_watch_free(IndexWatch *watch) {
    while (watch->oldest) question_forget(watch, watch->oldest);
    index_watch_free_left(watch, INT64_MAX);
    forget_touched(watch);
    watch_free_nodes(watch, &watch->names);
    watch_free_nodes(watch, &watch->terms);
    watch_free_nodes(watch, &watch->documents);
    watch->allocator.free(watch);
}

size_t index_watch_count(const IndexWatch *watch) { return watch->names.count; }
size_t index_watch_memory(const IndexWatch *watch) { return watch->memory; }

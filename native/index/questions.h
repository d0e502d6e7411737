/* The watched questions (index.h and watch.c), and the terms and documents that the questions share.
 *
 * - An anchor is a term or a document that questions use. All questions with this term or document share the anchor.
 * - A use is one question's part of an anchor: a term or document of this question.
 * - A link is the way back, from an anchor to a question. A term has links only to the questions for which it is
 *   essential: a sentence without an essential term of a question cannot reach the question's score (watch.c).
 * - Bounds (`fewest`, `most`) are limits for a document frequency, or for the number of sentences. If a number leaves
 *   the bounds of a question, the question is dropped.
 * - A doomed question is no longer watched. It was dropped or has expired, and its memory is not freed yet.
 * - A touched term is a term whose document frequency this write may change. */
#pragma once

#include "index/structure.h"

/* An entry of a hash table: the first member of a question or an anchor. */
typedef struct Node {
    struct Node *next; /* the next entry in the same bucket */
    uint64_t hash;
} Node;

/* A hash table with chained buckets. */
typedef struct Nodes {
    Node **buckets;
    size_t size, count; /* `size` is 0 or a power of 2 */
} Nodes;

typedef struct Question Question;

typedef struct Link {
    Question *question;
    uint32_t use; /* the index of the anchor's term or document in the uses of the question */
} Link;

/* A term or a document that questions share. */
typedef struct Anchor {
    Node node;
    struct Anchor *next_touched, *next_here; /* the next touched term of this write; the next term of the current
                                              * sentence */
    Link *links;                             /* of a term: the questions for which the term is essential; of a document:
                                              * all its questions */
    uint32_t count, capacity;                /* of `links` */
    uint32_t users;                          /* how many questions use the anchor */
    uint64_t fewest, most; /* of a term: the narrowest bounds of its questions; they may be narrower than needed,
                            * because the question that set them may be gone */
    uint64_t stamp;        /* the number of the sentence that has set `code` */
    uint64_t frequency;    /* of a term: the document frequency that check_bounds() compares, set by find_out() */
    uint8_t code;          /* of a term: its code in the sentence that is being checked */
    bool touched, out;     /* `out`: the frequency is outside the bounds of the anchor */
    uint32_t length;
    uint8_t bytes[];
} Anchor;

enum { NO_LINK = 0xffffffff };

/* A term or a document of one question. */
typedef struct Use {
    Anchor *anchor;
    uint32_t link; /* the index of its link in the anchor, or NO_LINK */
    double idf, root_idf;
    uint64_t fewest, most; /* of a term: the bounds of this question */
} Use;

struct Question {
    Node node;
    Question *older, *newer, *next_doomed; /* the list by age, and the list of doomed questions; a doomed question is
                                            * only in the second list */
    uint64_t token, stamp; /* `stamp`: the number of the sentence for which the question was last checked */
    int64_t expires;
    double score;
    IndexVector *vector;   /* NULL: the question is ranked by words only */
    uint64_t fewest, most; /* the bounds for the number of sentences */
    bool doomed;
    uint32_t terms, uses; /* the uses are terms, then documents */
    uint32_t name_length, filter_length;
    uint8_t *name; /* stored after the uses; the filter is stored after the name */
    Use use[];
};

/* `names` and the list from `oldest` to `newest` contain all watched questions. Anchors may also have links to doomed
 * questions. */
struct IndexWatch {
    IndexAllocator allocator;
    uint64_t key[2];
    size_t memory;
    IndexDropped dropped;
    Nodes names, terms, documents;
    Question *oldest, *newest;
    Question *doomed, *left; /* dropped, but not reported yet; reported or expired, but not freed yet */
    size_t doomed_count;     /* questions in `doomed` */
    Anchor *touched;
    uint64_t fewest, most;        /* the narrowest bounds for the number of sentences; they may be narrower than needed,
                                   * because the question that set them may be gone */
    uint64_t sentence;            /* the current `stamp`; each checked sentence, change of fields or change of vectors
                                   * gets the next number */
    size_t reviewed, review_size; /* how many buckets of `terms` the review has compared; how many buckets `terms` had
                                   * at the start of the review */
    bool review;                  /* a review is running: it compares all terms with their bounds, in steps */
    int64_t looks;                /* how many questions this write may still check */
};

void *watch_take(IndexWatch *watch, size_t bytes);
void watch_give(IndexWatch *watch, void *pointer, size_t bytes);
void watch_free_nodes(IndexWatch *watch, Nodes *nodes);

Anchor *anchor_find(const IndexWatch *watch, const Nodes *nodes, const void *bytes, size_t length);
/* Returns the anchor of a term or document, and counts one more user. Creates a missing anchor. */
Anchor *anchor_use(IndexWatch *watch, Nodes *nodes, const void *bytes, size_t length);
/* Frees the anchor if no question uses it. A touched anchor stays until index_watch_settle(). */
void anchor_free_unused(IndexWatch *watch, Nodes *nodes, Anchor *anchor);
/* Adds a link from the anchor of a term or document to the question. `use` is the index of this term or document in the
 * uses of the question. */
void anchor_link(IndexWatch *watch, Question *question, uint32_t use);
/* Adds a term to the touched terms of this write. */
void anchor_touch(IndexWatch *watch, Anchor *anchor);

/* Returns a copy of the vector, for `vector` of a question. The copy is freed with its question. */
IndexVector *question_vector(IndexWatch *watch, const IndexVector *vector);
Question *question_find(const IndexWatch *watch, const void *name, size_t length);
/* Adds a new question to the table of names, and to the list by age as the newest question. */
void question_join(IndexWatch *watch, Question *question);
/* Removes a question without a report, and frees it. */
void question_forget(IndexWatch *watch, Question *question);
/* Removes an expired question without a report. Its memory is freed later. */
void question_expire(IndexWatch *watch, Question *question);
/* Drops a question. The links of anchors do not change, so the caller may be in a loop over links. Call
 * questions_tell() afterwards. */
void question_doom(IndexWatch *watch, Question *question);
/* Reports the dropped questions: each by its name, or all in one call if there are many. */
void questions_tell(IndexWatch *watch, void *context);

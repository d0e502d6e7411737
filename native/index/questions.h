/* The watched questions, and the terms and documents that they share. */
#pragma once

#include "index/structure.h"

typedef struct Node {
    struct Node *next; /* in the bucket */
    uint64_t hash;
} Node;

typedef struct Nodes {
    Node **buckets;
    size_t size, count; /* `size` is 0 or a power of 2 */
} Nodes;

typedef struct Question Question;

typedef struct Link {
    Question *question;
    uint32_t use; /* its index in the uses of the question */
} Link;

/* A term or a document that several questions share. */
typedef struct Anchor {
    Node node;
    struct Anchor *next_touched, *next_here; /* the next touched term of this write; the next term of the current
                                              * sentence */
    Link *links;                             /* of a term: the questions for which the term is essential */
    uint32_t count, capacity;
    uint32_t users;        /* questions */
    uint64_t fewest, most; /* of a term: the narrowest bounds; a removed question may have set them */
    uint64_t stamp;        /* the number of the sentence that has set `code` */
    uint64_t frequency;    /* of a term out of bounds, while all questions are checked */
    uint8_t code;
    bool touched, out;
    uint32_t length;
    uint8_t bytes[];
} Anchor;

enum { NO_LINK = 0xffffffff };

/* A term or a document of one question. */
typedef struct Use {
    Anchor *anchor;
    uint32_t link; /* the index of its link in the anchor, or NO_LINK */
    double idf, root_idf;
    uint64_t fewest, most;
} Use;

struct Question {
    Node node;
    Question *older, *newer, *next_doomed; /* a doomed question has only `next_doomed` */
    uint64_t token, stamp;
    int64_t expires;
    double score;
    IndexVector *vector; /* NULL: the question is ranked by words only */
    uint64_t fewest, most;
    bool doomed;
    uint32_t terms, uses; /* the uses are terms, then documents */
    uint32_t name_length, filter_length;
    uint8_t *name; /* stored after the uses; the filter is stored after the name */
    Use use[];
};

/* `names` and the list from `oldest` to `newest` contain all watched questions. Anchors may also have links to removed
 * questions. */
struct IndexWatch {
    IndexAllocator allocator;
    uint64_t key[2];
    size_t memory;
    IndexDropped dropped;
    Nodes names, terms, documents;
    Question *oldest, *newest;
    Question *doomed, *left; /* dropped, but not reported yet; removed, but not freed yet */
    size_t doomed_count;
    Anchor *touched;
    uint64_t fewest, most;        /* the narrowest bounds for the number of sentences; a removed question may have set
                                   * them */
    uint64_t sentence;            /* counts the sentences that were checked */
    size_t reviewed, review_size; /* how many buckets of terms the review has compared; how many there are */
    bool review;                  /* a review compares all terms with their bounds, in steps */
    int64_t looks;                /* how many questions this write may still check */
};

void *watch_take(IndexWatch *watch, size_t bytes);
void watch_give(IndexWatch *watch, void *pointer, size_t bytes);
void watch_free_nodes(IndexWatch *watch, Nodes *nodes);

Anchor *anchor_find(const IndexWatch *watch, const Nodes *nodes, const void *bytes, size_t length);
/* Returns the anchor of a term or document, and counts one more user. Creates a missing anchor. */
Anchor *anchor_use(IndexWatch *watch, Nodes *nodes, const void *bytes, size_t length);
/* Frees an anchor that no question uses. A touched anchor stays until index_watch_settle. */
void anchor_free_unused(IndexWatch *watch, Nodes *nodes, Anchor *anchor);
void anchor_link(IndexWatch *watch, Question *question, uint32_t use);
void anchor_touch(IndexWatch *watch, Anchor *anchor);

/* Returns a copy of the vector. The copy is freed with its question. */
IndexVector *question_vector(IndexWatch *watch, const IndexVector *vector);
Question *question_find(const IndexWatch *watch, const void *name, size_t length);
void question_join(IndexWatch *watch, Question *question);
/* Removes a replaced question without a report. */
void question_forget(IndexWatch *watch, Question *question);
/* Removes an expired question without a report. Its memory is freed later. */
void question_expire(IndexWatch *watch, Question *question);
/* Drops a question. The caller may be in a loop over links. Call questions_tell() afterwards. */
void question_doom(IndexWatch *watch, Question *question);
/* Reports the dropped questions: each by its name, or all in one call if there are many. */
void questions_tell(IndexWatch *watch, void *context);

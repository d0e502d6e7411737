/* What watch.c and questions.c share: the questions, and the terms and documents that they have in common. */
#ifndef QA_INDEX_WATCH_H
#define QA_INDEX_WATCH_H

#include "index/internal.h"

typedef struct Node {
    struct Node *next; /* in the bucket */
    uint64_t hash;
} Node;

typedef struct Nodes {
    Node **buckets;
    size_t size, count; /* size: 0 or a power of 2 */
} Nodes;

typedef struct Question Question;

typedef struct Link {
    Question *question;
    uint32_t use; /* its number in the question */
} Link;

/* A term or a document that questions have in common. */
typedef struct Anchor {
    Node node;
    struct Anchor *next_touched, *next_here; /* terms of this write; terms of the sentence at hand */
    Link *links;                             /* of a term: of the questions for which it is essential */
    uint32_t count, capacity;
    uint32_t users;        /* questions */
    uint64_t fewest, most; /* of a term: the narrowest bounds, perhaps of a question that is gone */
    uint64_t stamp;        /* the sentence that has set the code */
    uint64_t frequency;    /* of a term that is out of bounds, while the questions are gone through */
    uint8_t code;
    bool touched, out;
    uint32_t length;
    uint8_t bytes[];
} Anchor;

enum { NO_LINK = 0xffffffff };

/* What a question has to do with an anchor. */
typedef struct Use {
    Anchor *anchor;
    uint32_t link; /* its number in the anchor, or NO_LINK */
    double idf, root_idf;
    uint64_t fewest, most;
} Use;

struct Question {
    Node node;
    Question *older, *newer, *next_doomed; /* a doomed one has no others */
    uint64_t token, stamp;
    int64_t expires;
    double score;
    uint64_t fewest, most;
    bool doomed;
    uint32_t terms, uses; /* the uses are terms, then documents */
    uint32_t name_length, filter_length;
    uint8_t *name; /* behind the uses; the filter is behind the name */
    Use use[];
};

/* Names and ages have the questions that are watched; anchors may also have links of those that are gone. */
struct IndexWatch {
    IndexAllocator allocator;
    uint64_t key[2];
    size_t memory;
    IndexDropped dropped;
    Nodes names, terms, documents;
    Question *oldest, *newest;
    Question *doomed, *left; /* gone, but not told yet; gone, and only to be freed */
    size_t doomed_count;
    Anchor *touched;
    uint64_t fewest, most;        /* of sentences: the narrowest bounds, perhaps of a question that is gone */
    uint64_t sentence;            /* a number for each that is looked at */
    size_t reviewed, review_size; /* buckets of the terms that were compared, of so many */
    bool review;                  /* all terms are to be compared with their bounds, in steps */
    int64_t looks;                /* how many questions this write may still look at */
};

void *watch_take(IndexWatch *watch, size_t bytes);
void watch_give(IndexWatch *watch, void *pointer, size_t bytes);
void watch_free_nodes(IndexWatch *watch, Nodes *nodes);

Anchor *anchor_find(const IndexWatch *watch, const Nodes *nodes, const void *bytes, size_t length);
/* Finds or makes it, for one question more. */
Anchor *anchor_use(IndexWatch *watch, Nodes *nodes, const void *bytes, size_t length);
/* One that was touched stays until the write is settled. */
void anchor_free_unused(IndexWatch *watch, Nodes *nodes, Anchor *anchor);
void anchor_link(IndexWatch *watch, Question *question, uint32_t use);
void anchor_touch(IndexWatch *watch, Anchor *anchor);

Question *question_find(const IndexWatch *watch, const void *name, size_t length);
void question_join(IndexWatch *watch, Question *question);
/* Without a word: it was replaced. */
void question_forget(IndexWatch *watch, Question *question);
/* Without a word, and its memory follows later: its time is up. */
void question_expire(IndexWatch *watch, Question *question);
/* From now on it is not watched. A walk over links may go on; questions_tell() follows. */
void question_doom(IndexWatch *watch, Question *question);
/* Says which are doomed: each by its name, or in one word that there are many. */
void questions_tell(IndexWatch *watch, void *context);

#endif

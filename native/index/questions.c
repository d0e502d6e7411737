/* Adds and removes watched questions: hash tables of their names, terms and documents. questions.h defines the words.
 *
 * A question is removed in two steps. The first step removes the question from the table of names and from the list by
 * age, so lookups no longer find the question. The second step removes its links from terms and documents, and frees
 * the question. The second step takes 1 to 2 us for a question. So it runs later, in batches, for questions that have
 * expired, and if a call drops more than INDEX_TOLD_BY_NAME questions. */
#include "index/questions.h"

#include "index/memory.h"

/* The cost of unlinking one term or document of a question, in units. */
enum { USE_UNITS = 10 };

/* ---- Memory ---- */

void *watch_take(IndexWatch *watch, size_t bytes) {
    watch->memory += bytes;
    return watch->allocator.alloc(bytes);
}

void watch_give(IndexWatch *watch, void *pointer, size_t bytes) {
    if (!pointer) return;
    watch->memory -= bytes;
    watch->allocator.free(pointer);
}

/* ---- Tables ---- */

enum { FIRST_BUCKETS = 16 };

static void insert(IndexWatch *watch, Nodes *nodes, Node *node) {
    if (nodes->count == nodes->size) {
        size_t size = nodes->size ? nodes->size * 2 : FIRST_BUCKETS;
        Node **buckets = watch_take(watch, size * sizeof *buckets);
        memset(buckets, 0, size * sizeof *buckets);
        for (size_t i = 0; i < nodes->size; i++)
            for (Node *at = nodes->buckets[i], *next; at; at = next) {
                next = at->next;
                at->next = buckets[at->hash & (size - 1)];
                buckets[at->hash & (size - 1)] = at;
            }
        watch_give(watch, nodes->buckets, nodes->size * sizeof *buckets);
        nodes->buckets = buckets;
        nodes->size = size;
    }
    Node **bucket = &nodes->buckets[node->hash & (nodes->size - 1)];
    node->next = *bucket;
    *bucket = node;
    nodes->count++;
}

static void take_out(Nodes *nodes, Node *node) {
    Node **at = &nodes->buckets[node->hash & (nodes->size - 1)];
    while (*at != node) at = &(*at)->next;
    *at = node->next;
    nodes->count--;
}

static Node *first_of(const Nodes *nodes, uint64_t hash) {
    return nodes->size ? nodes->buckets[hash & (nodes->size - 1)] : NULL;
}

Anchor *anchor_find(const IndexWatch *watch, const Nodes *nodes, const void *bytes, size_t length) {
    if (!nodes->count) return NULL;
    uint64_t hash = hash_bytes(watch->key, bytes, length);
    for (Node *node = first_of(nodes, hash); node; node = node->next) {
        Anchor *anchor = (Anchor *)node;
        if (node->hash == hash && anchor->length == length && !memcmp(anchor->bytes, bytes, length)) return anchor;
    }
    return NULL;
}

Question *question_find(const IndexWatch *watch, const void *name, size_t length) {
    if (!watch->names.count) return NULL;
    uint64_t hash = hash_bytes(watch->key, name, length);
    for (Node *node = first_of(&watch->names, hash); node; node = node->next) {
        Question *question = (Question *)node;
        if (node->hash == hash && question->name_length == length && !memcmp(question->name, name, length))
            return question;
    }
    return NULL;
}

void watch_free_nodes(IndexWatch *watch, Nodes *nodes) {
    watch_give(watch, nodes->buckets, nodes->size * sizeof(Node *));
}

/* ---- Anchors ---- */

Anchor *anchor_use(IndexWatch *watch, Nodes *nodes, const void *bytes, size_t length) {
    Anchor *anchor = anchor_find(watch, nodes, bytes, length);
    if (!anchor) {
        anchor = watch_take(watch, sizeof *anchor + length);
        *anchor = (Anchor){
            .node.hash = hash_bytes(watch->key, bytes, length), .most = UINT64_MAX, .length = (uint32_t)length};
        memcpy(anchor->bytes, bytes, length);
        insert(watch, nodes, &anchor->node);
    }
    anchor->users++;
    return anchor;
}

void anchor_free_unused(IndexWatch *watch, Nodes *nodes, Anchor *anchor) {
    if (anchor->users || anchor->touched) return;
    take_out(nodes, &anchor->node);
    watch_give(watch, anchor->links, anchor->capacity * sizeof *anchor->links);
    watch_give(watch, anchor, sizeof *anchor + anchor->length);
}

void anchor_link(IndexWatch *watch, Question *question, uint32_t number) {
    Anchor *anchor = question->use[number].anchor;
    if (anchor->count == anchor->capacity) {
        uint32_t capacity = anchor->capacity ? anchor->capacity * 2 : 2;
        Link *links = watch_take(watch, capacity * sizeof *links);
        if (anchor->count) memcpy(links, anchor->links, anchor->count * sizeof *links);
        watch_give(watch, anchor->links, anchor->capacity * sizeof *links);
        anchor->links = links;
        anchor->capacity = capacity;
    }
    question->use[number].link = anchor->count;
    anchor->links[anchor->count++] = (Link){question, number};
}

static void unlink_use(Question *question, uint32_t number) {
    Use *use = &question->use[number];
    if (use->link == NO_LINK) return;
    Anchor *anchor = use->anchor;
    Link last = anchor->links[--anchor->count];
    anchor->links[use->link] = last;
    last.question->use[last.use].link = use->link;
}

void anchor_touch(IndexWatch *watch, Anchor *anchor) {
    if (anchor->touched) return;
    anchor->touched = true;
    anchor->next_touched = watch->touched;
    watch->touched = anchor;
}

/* ---- Questions ---- */

static size_t question_bytes(const Question *question) {
    return sizeof *question + question->uses * sizeof *question->use + question->name_length + question->filter_length;
}

void question_join(IndexWatch *watch, Question *question) {
    question->older = watch->newest;
    if (question->older) question->older->newer = question;
    else watch->oldest = question;
    watch->newest = question;
    insert(watch, &watch->names, &question->node);
}

/* Stops watching the question. Anchors still have links to the question. */
static void leave(IndexWatch *watch, Question *question) {
    if (question->older) question->older->newer = question->newer;
    else watch->oldest = question->newer;
    if (question->newer) question->newer->older = question->older;
    else watch->newest = question->older;
    take_out(&watch->names, &question->node);
    if (watch->oldest) return;
    watch->fewest = 0;
    watch->most = UINT64_MAX;
}

/* The bytes of a copied vector: the struct, then the digest of its encoder, then its values. */
static size_t vector_size(const IndexVector *vector) { return sizeof *vector + INDEX_DIGEST + vector->dims; }

IndexVector *question_vector(IndexWatch *watch, const IndexVector *vector) {
    IndexVector *copy = watch_take(watch, vector_size(vector));
    uint8_t *digest = (uint8_t *)(copy + 1);
    *copy = *vector;
    memcpy(digest, vector->digest, INDEX_DIGEST);
    memcpy(digest + INDEX_DIGEST, vector->values, vector->dims);
    copy->digest = digest;
    copy->values = (const int8_t *)digest + INDEX_DIGEST;
    return copy;
}

static void release(IndexWatch *watch, Question *question) {
    if (question->vector) watch_give(watch, question->vector, vector_size(question->vector));
    for (uint32_t i = 0; i < question->uses; i++) {
        Anchor *anchor = question->use[i].anchor;
        unlink_use(question, i);
        anchor->users--;
        anchor_free_unused(watch, i < question->terms ? &watch->terms : &watch->documents, anchor);
    }
    watch_give(watch, question, question_bytes(question));
}

void question_forget(IndexWatch *watch, Question *question) {
    leave(watch, question);
    release(watch, question);
}

static void put_off(IndexWatch *watch, Question *question) {
    question->next_doomed = watch->left;
    watch->left = question;
}

void question_expire(IndexWatch *watch, Question *question) {
    leave(watch, question);
    question->doomed = true;
    put_off(watch, question);
}

void question_doom(IndexWatch *watch, Question *question) {
    if (question->doomed) return;
    leave(watch, question);
    question->doomed = true;
    question->next_doomed = watch->doomed;
    watch->doomed = question;
    watch->doomed_count++;
}

void questions_tell(IndexWatch *watch, void *context) {
    size_t count = watch->doomed_count;
    bool many = count > INDEX_TOLD_BY_NAME;
    if (many) watch->dropped(context, NULL, 0, count);
    for (Question *question = watch->doomed, *next; question; question = next) {
        next = question->next_doomed;
        if (!many) watch->dropped(context, question->name, question->name_length, 1);
        if (many) put_off(watch, question);
        else release(watch, question);
    }
    watch->doomed = NULL;
    watch->doomed_count = 0;
}

bool index_watch_has_left(const IndexWatch *watch) { return watch->left; }

bool index_watch_free_left(IndexWatch *watch, int64_t budget) {
    for (Question *question = watch->left; question && budget > 0; question = watch->left) {
        watch->left = question->next_doomed;
        budget -= USE_UNITS * (question->uses + 1);
        release(watch, question);
    }
    return watch->left;
}

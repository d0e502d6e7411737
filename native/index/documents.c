/* Opens, fills, commits and removes documents, and adds their terms to the document frequencies. */
#include "index/documents.h"

#include "index/codes.h"
#include "index/dictionary.h"
#include "index/fields.h"
#include "index/memory.h"
#include "index/names.h"
#include "index/postings.h"
#include "index/runs.h"
#include "index/sentences.h"
#include "index/table.h"
#include "index/vectors.h"

/* ---- The table of documents ---- */

static Document **slot_at(const Index *index, uint32_t number) { return chunks_at(&index->documents, number); }

size_t document_bytes(const Document *document) {
    return sizeof *document + document->id_bytes + document->field_bytes + document->forward_bytes;
}

uint64_t documents_hash(const Index *index, uint32_t number) {
    const Document *document = document_at(index, number);
    return hash_bytes(index->key, document->bytes, document->id_bytes);
}

void documents_fetch(const Index *index, uint32_t number, bool first) {
    __builtin_prefetch(first ? (const void *)slot_at(index, number) : document_at(index, number)->bytes);
}

static bool equal(const Index *index, uint32_t number, const TableKey *key) {
    const Document *document = document_at(index, number);
    return document->id_bytes == key->length && memcmp(document->bytes, key->bytes, key->length) == 0;
}

uint32_t document_find(const Index *index, const void *id, size_t length) {
    TableKey key = {id, length, hash_bytes(index->key, id, length)};
    return table_find(index, &index->document_table, &key, equal);
}

/* A slot is the pointer of one document in `documents` of the index. A free slot contains twice the number of the next
 * free slot, plus 1. (A pointer to a document is even.) */
static uint32_t take_slot(Index *index) {
    uint32_t number = index->free_document;
    if (number == NO_ITEM) return chunks_add(index, &index->documents);
    index->free_document = (uint32_t)((uintptr_t)*slot_at(index, number) >> 1);
    return number;
}

static bool slot_is_free(const Index *index, uint32_t number) { return (uintptr_t)*slot_at(index, number) & 1; }

static void leave_slot(Index *index, uint32_t number) {
    *slot_at(index, number) = (Document *)((uintptr_t)index->free_document << 1 | 1);
    index->free_document = number;
}

static void drop_document(Index *index, uint32_t number) {
    Document *document = document_at(index, number);
    index->id_memory -= document->id_bytes;
    vectors_free(index, document);
    memory_free(index, document, document_bytes(document));
    leave_slot(index, number);
}

void documents_replace(Index *index, uint32_t number, Document *document) { *slot_at(index, number) = document; }

static uint32_t new_document(Index *index, const void *id, size_t id_length, const void *fields, size_t fields_length) {
    uint32_t number = take_slot(index);
    if (number == NO_ITEM) return NO_ITEM;
    Document *document = memory_alloc(index, sizeof *document + id_length + fields_length);
    *document = (Document){
        .head = index->next_id, .id_bytes = (uint32_t)id_length, .field_bytes = (uint32_t)fields_length};
    memcpy(document->bytes, id, id_length);
    if (fields_length) memcpy(document->bytes + id_length, fields, fields_length);
    index->id_memory += id_length;
    *slot_at(index, number) = document;
    runs_append(index, index->next_id++, 1, number, 0);
    return number;
}

uint32_t documents_restore(Index *index, const void *id, size_t id_length, const void *fields, size_t field_length) {
    uint32_t number = new_document(index, id, id_length, fields, field_length);
    if (number == NO_ITEM) return NO_ITEM;
    document_at(index, number)->state = DOCUMENT_LIVE;
    table_insert(index, &index->document_table, documents_hash(index, number), number);
    field_names_count(index, fields, field_length, +1);
    index->document_count++;
    return number;
}

static IndexPending *new_pending(Index *index, uint32_t number) {
    IndexPending *pending = memory_zeroed(index, sizeof *pending);
    pending->index = index;
    pending->document = document_at(index, number);
    pending->number = number;
    pending->next = index->pending;
    if (pending->next) pending->next->previous = pending;
    index->pending = pending;
    return pending;
}

IndexPending *documents_reopen(Index *index, const void *id, size_t id_length, const void *fields,
                               size_t field_length) {
    uint32_t number = new_document(index, id, id_length, fields, field_length);
    if (number == NO_ITEM) return NULL;
    IndexPending *pending = new_pending(index, number);
    pending->in_parts = true;
    return pending;
}

/* ---- Forward lists ---- */

/* A forward list contains the terms of a document, so that the removal of the document does not search the postings.
 * The list consists of groups. A group has the terms of some of the document's sentences, so a term may be in several
 * groups. The term numbers ascend within a group. A 0 byte separates two groups. A term is a varint: twice the
 * difference from the previous term number, which counts as -1 at the start of a group. If the term is in several
 * sentences of the group, the varint is 1 larger, and a second varint follows: the number of these sentences minus 2.
 */
uint8_t *forward_put(uint8_t *at, int64_t *last, uint32_t term, uint32_t count) {
    if ((int64_t)term <= *last) {
        *at++ = 0;
        *last = -1;
    }
    at = varint_put(at, (uint64_t)((int64_t)term - *last) << 1 | (count > 1));
    if (count > 1) at = varint_put(at, count - 2);
    *last = term;
    return at;
}

const uint8_t *forward_get(const uint8_t *at, int64_t *term, uint64_t *count) {
    uint64_t value;
    if (!*at) {
        at++;
        *term = -1;
    }
    at = varint_get(at, &value);
    *count = 1;
    if (value & 1) {
        at = varint_get(at, count);
        *count += 2;
    }
    *term += (int64_t)(value >> 1);
    return at;
}

const uint8_t *document_forward(const Document *document) { return document_fields(document) + document->field_bytes; }

/* Adds the terms of a document to the document frequencies if `sign` of `work` is +1, or subtracts the terms if `sign`
 * is -1. Uses one unit of *budget for each entry of the forward list. False: the budget was used up before the end of
 * the forward list. */
static bool walk_forward(Index *index, const Document *document, Work *work, int64_t *budget) {
    const uint8_t *start = document_forward(document), *at = start + work->at, *end = start + document->forward_bytes;
    for (; at < end && *budget > 0; --*budget) {
        uint64_t count;
        at = forward_get(at, &work->term, &count);
        entry_at(index, (uint32_t)work->term)->df += (uint32_t)(work->sign * (int64_t)count);
        if (work->sign < 0) index->dead_postings += count;
    }
    work->at = (uint32_t)(at - start);
    return at == end;
}

/* ---- Overdue work ---- */

static void queue_work(Index *index, uint32_t number, int sign) {
    Work *work = memory_alloc(index, sizeof *work);
    *work = (Work){.document = number,
                   .sign = (int8_t)sign,
                   .forward_done = !sign,
                   .term = -1,
                   .run = document_at(index, number)->head};
    *index->work_end = work;
    index->work_end = &work->next;
}

/* Removes the runs of the work's document, from the id `run` of `work` on. Uses one unit of *budget for each run in the
 * range of the document's ids, even for runs of other documents. False: the budget was used up before the last run. */
static bool remove_runs(Index *index, Work *work, int64_t *budget) {
    const Document *document = document_at(index, work->document);
    uint64_t last = document->head + document->span;
    while (work->run <= last) {
        if (--*budget < 0) return false;
        Place place = runs_from(index, work->run);
        if (place.document == NO_ITEM) break;
        if (place.document == work->document) runs_remove(index, place.first);
        work->run = place.end;
    }
    return true;
}

/* Does the queued work in the order of commits and removals, so that a frequency never falls below 0. */
void documents_work(Index *index, int64_t *budget) {
    while (index->work && *budget > 0) {
        Work *work = index->work;
        if (!work->forward_done)
            work->forward_done = walk_forward(index, document_at(index, work->document), work, budget);
        if (!work->forward_done) return;
        if (work->sign <= 0) {
            if (!remove_runs(index, work, budget)) return;
            drop_document(index, work->document);
        }
        index->work = work->next;
        if (!index->work) index->work_end = &index->work;
        memory_free(index, work, sizeof *work);
    }
}

static void take_along(Index *index) {
    int64_t budget = WORK_PER_CALL;
    documents_work(index, &budget);
}

/* ---- Writing ---- */

IndexStatus index_begin(Index *index, const void *id, size_t id_length, const void *fields, size_t fields_length,
                        IndexPending **out) {
    if (!id_length || id_length > INDEX_MAX_DOCUMENT_ID || !index_fields_valid(fields, fields_length))
        return INDEX_INVALID;
    if (index->next_id > MAX_ID) return INDEX_FULL;
    take_along(index);
    uint32_t number = new_document(index, id, id_length, fields, fields_length);
    if (number == NO_ITEM) return INDEX_FULL;
    *out = new_pending(index, number);
    return INDEX_OK;
}

static void forget_pending(IndexPending *pending) {
    Index *index = pending->index;
    if (pending->previous) pending->previous->next = pending->next;
    else index->pending = pending->next;
    if (pending->next) pending->next->previous = pending->previous;
    memory_free(index, pending->forward, pending->forward_capacity);
    memory_free(index, pending, sizeof *pending);
}

enum { GROUP_TERMS = 2048 };

/* Sorts numbers in ascending order. Shell sort needs little code, and takes acceptable time for any order of items. */
static void sort(uint32_t *items, unsigned count) {
    static const unsigned GAPS[] = {1577, 701, 301, 132, 57, 23, 10, 4, 1};
    for (unsigned g = 0; g < sizeof GAPS / sizeof *GAPS; g++) {
        unsigned gap = GAPS[g];
        for (unsigned i = gap; i < count; i++) {
            uint32_t item = items[i];
            unsigned j = i;
            for (; j >= gap && items[j - gap] > item; j -= gap) items[j] = items[j - gap];
            items[j] = item;
        }
    }
}

/* Appends the terms of several sentences to the forward list, as one group. `terms` has a term number for each of
 * `count` postings, in any order. False: the forward list is too long. */
static bool add_group(IndexPending *pending, uint32_t *terms, unsigned count) {
    Index *index = pending->index;
    uint8_t bytes[GROUP_TERMS * FORWARD_BYTES], *at = bytes;
    int64_t last = -1;
    if (!count) return true;
    sort(terms, count);
    if (pending->forward_used) *at++ = 0;
    for (unsigned i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && terms[next] == terms[i]; next++) {
        }
        at = forward_put(at, &last, terms[i], next - i);
    }
    uint32_t used = pending->forward_used, more = (uint32_t)(at - bytes);
    if (more > UINT32_MAX / 2 - used) return false;
    if (used + more > pending->forward_capacity) {
        uint32_t wanted = used + more > 2 * pending->forward_capacity ? used + more : 2 * pending->forward_capacity;
        pending->forward = memory_resize(index, pending->forward, pending->forward_capacity, wanted);
        pending->forward_capacity = wanted;
    }
    memcpy(pending->forward + used, bytes, more);
    pending->forward_used += more;
    return true;
}

/* Adds the postings and the forward list of new sentences. The packed sentences are from `at` to `end`. `id` is the id
 * of the first sentence. False: the index is full. */
static bool add_sentences(IndexPending *pending, const uint8_t *at, const uint8_t *end, uint64_t id) {
    Index *index = pending->index;
    uint32_t terms[GROUP_TERMS], length, count, frequency, bytes;
    unsigned in_group = 0;
    for (; at < end; id++) {
        at = packed_number(packed_number(at, end, &length), end, &count);
        for (; count; count--, at += bytes) {
            bool is_new;
            at = packed_number(packed_number(at, end, &frequency), end, &bytes);
            uint32_t term = dictionary_add(index, at, bytes, &is_new);
            if (term == NO_ITEM || postings_count(entry_at(index, term)) == UINT32_MAX) return false;
            postings_append(index, entry_at(index, term), id, code_of(frequency, length));
            index->postings++;
            pending->postings++;
            if (in_group == GROUP_TERMS) {
                if (!add_group(pending, terms, in_group)) return false;
                in_group = 0;
            }
            terms[in_group++] = term;
        }
        pending->document->terms += length;
    }
    return add_group(pending, terms, in_group);
}

IndexStatus index_add(IndexPending *pending, const void *bytes, size_t length, size_t count) {
    Index *index = pending->index;
    Document *document = pending->document;
    if (pending->refused) return INDEX_INVALID;
    if (!count) return INDEX_OK;
    uint64_t first = index->next_id;
    pending->refused = true;
    if (count >= UINT32_MAX - document->sentences || first > MAX_ID || count > MAX_ID - first) return INDEX_FULL;
    runs_append(index, first, (uint32_t)count, pending->number, document->sentences + 1);
    index->next_id += count;
    document->sentences += (uint32_t)count;
    document->span = index->next_id - 1 - document->head;
    pending->refused = !add_sentences(pending, bytes, (const uint8_t *)bytes + length, first);
    return pending->refused ? INDEX_FULL : INDEX_OK;
}

/* Uses one more id, so that a ranking before this call has a lower index_next_id() than a ranking after this call. If
 * no id is left, index_watch_add() refuses all questions. */
static void use_late_id(Index *index) { index->committed_late = index->next_id > MAX_ID ? NO_ID : ++index->next_id; }

IndexStatus index_commit(IndexPending *pending) {
    Index *index = pending->index;
    Document *open = pending->document;
    if (pending->refused) return INDEX_INVALID;
    if (document_find(index, open->bytes, open->id_bytes) != NO_ITEM) return INDEX_EXISTS;
    uint32_t used = pending->forward_used, number = pending->number;
    size_t bytes = document_bytes(open);
    Document *document = memory_resize(index, open, bytes, bytes + used);
    if (used) memcpy((uint8_t *)document + bytes, pending->forward, used);
    document->forward_bytes = used;
    document->state = DOCUMENT_LIVE;
    *slot_at(index, number) = document;
    table_insert(index, &index->document_table, documents_hash(index, number), number);
    field_names_count(index, document_fields(document), document->field_bytes, +1);
    index->document_count++;
    index->filled_count += document->sentences > 0;
    index->sentences += document->sentences;
    index->terms += document->terms;
    if (pending->in_parts) use_late_id(index);
    forget_pending(pending);
    queue_work(index, number, +1);
    take_along(index);
    return INDEX_OK;
}

void index_abort(IndexPending *pending) {
    Index *index = pending->index;
    pending->document->state = DOCUMENT_DEAD;
    index->dead_postings += pending->postings;
    queue_work(index, pending->number, 0);
    forget_pending(pending);
    take_along(index);
}

IndexStatus index_remove(Index *index, const void *id, size_t length) {
    uint32_t number = document_find(index, id, length);
    if (number == NO_ITEM) return INDEX_MISSING;
    Document *document = document_at(index, number);
    table_remove(index, &index->document_table, documents_hash(index, number), number);
    field_names_count(index, document_fields(document), document->field_bytes, -1);
    document->state = DOCUMENT_DEAD;
    vectors_free(index, document);
    index->document_count--;
    index->filled_count -= document->sentences > 0;
    index->sentences -= document->sentences;
    index->terms -= document->terms;
    queue_work(index, number, -1);
    take_along(index);
    return INDEX_OK;
}

IndexStatus index_change(Index *index, const void *id, size_t length, const void *fields, size_t fields_length) {
    if (!index_fields_valid(fields, fields_length)) return INDEX_INVALID;
    uint32_t number = document_find(index, id, length);
    if (number == NO_ITEM) return INDEX_MISSING;
    Document *before = document_at(index, number);
    size_t bytes = document_bytes(before);
    Document *document = memory_alloc(index, bytes - before->field_bytes + fields_length);
    *document = *before;
    document->field_bytes = (uint32_t)fields_length;
    memcpy(document->bytes, before->bytes, document->id_bytes);
    if (fields_length) memcpy(document->bytes + document->id_bytes, fields, fields_length);
    memcpy((uint8_t *)document_forward(document), document_forward(before), document->forward_bytes);
    field_names_count(index, document_fields(before), before->field_bytes, -1);
    field_names_count(index, fields, fields_length, +1);
    documents_replace(index, number, document);
    memory_free(index, before, bytes);
    use_late_id(index);
    return INDEX_OK;
}

void documents_free(Index *index) {
    while (index->pending) forget_pending(index->pending);
    for (Work *work = index->work, *next; work; work = next) {
        next = work->next;
        memory_free(index, work, sizeof *work);
    }
    for (uint32_t number = 0; number < index->documents.items; number++)
        if (!slot_is_free(index, number)) drop_document(index, number);
    chunks_free(index, &index->documents);
    table_free(index, &index->document_table);
    vectors_free_encoders(index);
    runs_free(index);
}

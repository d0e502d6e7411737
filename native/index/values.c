/* Counts the values of a field, in steps of bounded work. */
#include "index/structure.h"

#include "index/fields.h"
#include "index/filter.h"
#include "index/memory.h"
#include "index/runs.h"

/* A page is the result of one call of index_values(). A page ends in one of these cases:
 * - Its values have PAGE_BYTES or more.
 * - The caller's `steps` are used up. Each run (a range of consecutive sentence ids of one document, runs.h) takes one
 *   step. The first run of a document takes one more step for every STEP_BYTES of the document's fields.
 * - With the values of the next document, the page might have more than INDEX_MAX_VALUES values.
 * - The index has no more documents. */
enum { PAGE_BYTES = 256 * 1024, STEP_BYTES = 256 };
/* The slots of a page's hash table: a power of 2, and twice the maximum number of values, so that at least half of the
 * slots are empty. */
enum { SLOTS = 2 * INDEX_MAX_VALUES };

typedef struct Page {
    IndexValue *values;
    size_t count, bytes;
    uint32_t *slots; /* an open addressing hash table; a slot has the number of a value plus 1 */
} Page;

/* Counts the document with this place for the value. A second equal value of the same document is not counted. */
static void count_value(Page *page, const uint8_t *value, uint64_t place) {
    uint32_t slot = (uint32_t)value_hash(value) & (SLOTS - 1);
    for (; page->slots[slot]; slot = (slot + 1) & (SLOTS - 1)) {
        IndexValue *known = &page->values[page->slots[slot] - 1];
        if (!value_equal(known->value, value)) continue;
        known->documents += known->last != place;
        known->last = place;
        return;
    }
    size_t bytes = value_bytes(value);
    page->values[page->count++] = (IndexValue){value, bytes, 1, place};
    page->slots[slot] = (uint32_t)page->count;
    page->bytes += bytes;
}

size_t index_values(Index *index, uint64_t *cursor, const void *name, size_t length, const IndexFilter *filter,
                    size_t steps, IndexValue *values, IndexValueTotals *totals) {
    Page page = {.values = values, .slots = memory_zeroed(index, SLOTS * sizeof *page.slots)};
    uint64_t id = *cursor;
    *totals = (IndexValueTotals){0};
    while (steps && page.bytes < PAGE_BYTES) {
        Place place = runs_from(index, id);
        if (place.document == NO_ITEM) {
            id = 0;
            break;
        }
        const Document *document = document_at(index, place.document);
        bool is_head = place.sentence == 0 && id <= place.first;
        size_t cost = 1 + (is_head ? document->field_bytes / STEP_BYTES : 0);
        if (is_head && document->state == DOCUMENT_LIVE && (!filter || filter_matches(filter, document))) {
            unsigned count;
            const uint8_t *at = fields_find(document_fields(document), document->field_bytes, name, (uint8_t)length,
                                            &count);
            if (at && page.count + count > INDEX_MAX_VALUES) break; /* the next page starts with this document */
            totals->documents++;
            totals->with_field += at != NULL;
            for (; at && count; count--, at += value_bytes(at)) count_value(&page, at, document->head);
        }
        id = place.end;
        steps -= cost < steps ? cost : steps;
    }
    memory_free(index, page.slots, SLOTS * sizeof *page.slots);
    *cursor = id;
    return page.count;
}

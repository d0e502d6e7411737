/* Filters: a tree of conditions on the fields of a document, and on its id.
 *
 *     node:       u8 operation, then
 *     AND, OR     '&' '|'          u16 number of nodes, the nodes (without nodes AND is true, OR is false)
 *     NOT         '!'              a node
 *     comparison  '=' '#' (!=) '<' '[' (<=) '>' ']' (>=)   name, value
 *     membership  'i' (in) 'o' (not in)                    name, u32 number of values, the values
 *     null        'z' (== null) 'e' (!= null)              name, not empty
 *     name:       u8 length, bytes; length 0: the document's id, which has only string values
 *     value:      as in fields.c
 *
 * Filters have the meaning of Haystack's filters:
 * - A missing field and an empty array are different from every value. So for a missing field or an empty array, == and
 *   `in` are false, != and `not in` are true, and <, <=, > and >= are false. NOT inverts the result of its node, even
 *   if a field is missing.
 * - A field is null if the document does not have it. An empty array is not null. An object is not null if the document
 *   has a field in it: `a` is not null if there is a field `a.b`.
 * - An array satisfies ==, `in`, <, <=, > or >= if any of its values does. != is the opposite of ==, and `not in` is
 *   the opposite of `in`.
 * - Values of different types are unequal, and <, <=, > and >= are false for them.
 * - A filter with <, <=, > or >= and a string or a boolean is invalid, as in Haystack. The value must be a number or a
 *   date. A caller must first convert a date in a string to a date.
 *
 * The tree is an array of nodes in the order of the bytes. Each node has the number of the first node after its
 * subtree. */
#include "index/filter.h"

#include "index/documents.h"
#include "index/fields.h"
#include "index/memory.h"

typedef struct Node {
    uint8_t operation, name_length;
    uint16_t end; /* the number of the first node after the subtree */
    uint32_t values;
    const uint8_t *name, *value;
    uint32_t *set; /* NULL, or for more than SET_VALUES values an open addressing hash table; an item is the offset of a
                    * value, plus 1 */
    uint32_t slots;
} Node;

struct IndexFilter {
    uint8_t *bytes;
    size_t length;
    unsigned count;
    Node nodes[INDEX_MAX_FILTER_NODES];
};

enum { SET_VALUES = 8 }; /* a list of at most this number of values has no hash table: each value is compared */

static int64_t date_at(const uint8_t *at) {
    uint64_t bits = 0;
    for (unsigned i = 0; i < 8; i++) bits |= (uint64_t)at[i] << (8 * i);
    return (int64_t)bits;
}

/* Returns the nanoseconds of a time. A time in whole seconds has the kind 't', and every other time the kind 'm'. So
 * equal times have equal bytes. */
static uint32_t fraction_at(const uint8_t *value) { return *value == 'm' ? u32_at(value + 9) : 0; }

static bool is_time(const uint8_t *value) { return *value == 't' || *value == 'm'; }

static bool satisfies(uint8_t operation, const uint8_t *value, const uint8_t *than) {
    if (operation == '=') return value_equal(value, than);
    if (*value != *than && !(is_time(value) && is_time(than))) return false;
    int sign;
    if (*value == 'n') {
        double a = value_number(value), b = value_number(than);
        sign = (a > b) - (a < b);
    } else {
        int64_t a = date_at(value + 1), b = date_at(than + 1);
        sign = (a > b) - (a < b);
        if (!sign) {
            uint32_t c = fraction_at(value), d = fraction_at(than);
            sign = (c > d) - (c < d);
        }
    }
    switch (operation) {
    case '<': return sign < 0;
    case '[': return sign <= 0;
    case '>': return sign > 0;
    }
    return sign >= 0;
}

static bool is_member(const Node *node, const uint8_t *value) {
    if (!node->set) {
        const uint8_t *at = node->value;
        for (uint32_t i = 0; i < node->values; i++, at += value_bytes(at))
            if (value_equal(value, at)) return true;
        return false;
    }
    for (uint32_t slot = (uint32_t)value_hash(value) & (node->slots - 1); node->set[slot];
         slot = (slot + 1) & (node->slots - 1))
        if (value_equal(value, node->value + node->set[slot] - 1)) return true;
    return false;
}

static void make_set(Index *index, Node *node) {
    node->slots = 16;
    while (node->slots < node->values * 2) node->slots *= 2;
    node->set = memory_zeroed(index, node->slots * sizeof *node->set);
    const uint8_t *at = node->value;
    for (uint32_t i = 0; i < node->values; i++, at += value_bytes(at)) {
        uint32_t slot = (uint32_t)value_hash(at) & (node->slots - 1);
        while (node->set[slot] && !value_equal(at, node->value + node->set[slot] - 1))
            slot = (slot + 1) & (node->slots - 1);
        node->set[slot] = (uint32_t)(at - node->value) + 1;
    }
}

/* ---- Reading ---- */

static const uint8_t *read_name(Node *node, const uint8_t *at, const uint8_t *end) {
    if (at == end) return NULL;
    node->name_length = *at++;
    node->name = at;
    return end - at < node->name_length ? NULL : at + node->name_length;
}

static const uint8_t *read_comparison(Index *index, Node *node, const uint8_t *at, const uint8_t *end) {
    if (!(at = read_name(node, at, end))) return NULL;
    bool many = node->operation == 'i' || node->operation == 'o';
    node->values = 1;
    if (many) {
        if (end - at < 4) return NULL;
        node->values = u32_at(at);
        if (node->values > INDEX_MAX_FILTER_VALUES) return NULL;
        at += 4;
    }
    node->value = at;
    for (uint32_t i = 0; i < node->values; i++) {
        const uint8_t *value = at;
        if (!(at = value_end(at, end))) return NULL;
        if (!node->name_length && *value != 's') return NULL;
        bool ordering = !many && node->operation != '=' && node->operation != '#';
        if (ordering && *value != 'n' && !is_time(value)) return NULL;
    }
    if (many && node->values > SET_VALUES) make_set(index, node);
    return at;
}

static const uint8_t *read_node(Index *index, IndexFilter *filter, const uint8_t *at, const uint8_t *end,
                                unsigned depth) {
    if (at == end || depth > INDEX_MAX_FILTER_DEPTH || filter->count == INDEX_MAX_FILTER_NODES) return NULL;
    Node *node = &filter->nodes[filter->count++];
    *node = (Node){.operation = *at++};
    unsigned children;
    switch (node->operation) {
    case '&':
    case '|':
        if (end - at < 2) return NULL;
        children = u16_at(at);
        at += 2;
        break;
    case '!': children = 1; break;
    case '=':
    case '#':
    case '<':
    case '[':
    case '>':
    case ']':
    case 'i':
    case 'o':
        children = 0;
        at = read_comparison(index, node, at, end);
        break;
    case 'z':
    case 'e':
        children = 0;
        at = read_name(node, at, end);
        if (!node->name_length) return NULL;
        break;
    default: return NULL;
    }
    for (; children && at; children--) at = read_node(index, filter, at, end, depth + 1);
    node->end = (uint16_t)filter->count;
    return at;
}

IndexFilter *index_filter_new(Index *index, const void *bytes, size_t length) {
    if (!length || length > UINT32_MAX) return NULL;
    IndexFilter *filter = memory_alloc(index, sizeof *filter);
    filter->bytes = memory_alloc(index, length);
    filter->length = length;
    filter->count = 0;
    memcpy(filter->bytes, bytes, length);
    if (read_node(index, filter, filter->bytes, filter->bytes + length, 1) == filter->bytes + length) return filter;
    index_filter_free(index, filter);
    return NULL;
}

void index_filter_free(Index *index, IndexFilter *filter) {
    if (!filter) return;
    for (unsigned i = 0; i < filter->count; i++)
        memory_free(index, filter->nodes[i].set, filter->nodes[i].slots * sizeof(uint32_t));
    memory_free(index, filter->bytes, filter->length);
    memory_free(index, filter, sizeof *filter);
}

/* ---- Evaluating ---- */

static bool id_is(const Document *document, const uint8_t *value) {
    return document->id_bytes == u16_at(value + 1) && memcmp(document->bytes, value + 3, document->id_bytes) == 0;
}

static bool id_is_member(const Node *node, const Document *document) {
    if (node->set) {
        /* An id of 65,536 bytes is longer than any string value. */
        uint8_t value[3 + UINT16_MAX];
        if (document->id_bytes > UINT16_MAX) return false;
        value[0] = 's';
        value[1] = (uint8_t)document->id_bytes;
        value[2] = (uint8_t)(document->id_bytes >> 8);
        memcpy(value + 3, document->bytes, document->id_bytes);
        return is_member(node, value);
    }
    const uint8_t *at = node->value;
    for (uint32_t i = 0; i < node->values; i++, at += value_bytes(at))
        if (id_is(document, at)) return true;
    return false;
}

/* True: any value of the field (or the document's id) satisfies the operation. The operation is `in`, or a comparison
 * except !=. */
static bool any_value(const Node *node, uint8_t operation, const Document *document) {
    if (!node->name_length) return id_is_member(node, document);
    unsigned values;
    const uint8_t *at = fields_find(document_fields(document), document->field_bytes, node->name, node->name_length,
                                    &values);
    if (!at) return false;
    for (; values; values--, at += value_bytes(at))
        if (operation == 'i' ? is_member(node, at) : satisfies(operation, at, node->value)) return true;
    return false;
}

static bool matches(const IndexFilter *filter, unsigned number, const Document *document) {
    const Node *node = &filter->nodes[number];
    switch (node->operation) {
    case '&':
    case '|':
        for (unsigned child = number + 1; child < node->end; child = filter->nodes[child].end)
            if (matches(filter, child, document) == (node->operation == '|')) return node->operation == '|';
        return node->operation == '&';
    case '!': return !matches(filter, number + 1, document);
    case '#': return !any_value(node, '=', document);
    case 'o': return !any_value(node, 'i', document);
    case 'z':
    case 'e':
        return fields_contain(document_fields(document), document->field_bytes, node->name, node->name_length) ==
               (node->operation == 'e');
    }
    return any_value(node, node->operation, document);
}

bool filter_matches(const IndexFilter *filter, const Document *document) { return matches(filter, 0, document); }

/* Returns the node that restricts the id: the root, or a child of an AND at the root. NULL: there is no such node. */
static const Node *id_node(const IndexFilter *filter) {
    const Node *root = filter->nodes;
    unsigned end = root->operation == '&' ? root->end : 1;
    for (unsigned i = root->operation == '&' ? 1 : 0; i < end; i = filter->nodes[i].end) {
        const Node *node = &filter->nodes[i];
        if ((node->operation == '=' || node->operation == 'i') && !node->name_length) return node;
    }
    return NULL;
}

int64_t filter_documents(Index *index, const IndexFilter *filter, uint32_t **documents, size_t *bytes) {
    const Node *node = id_node(filter);
    if (!node) return -1;
    *bytes = node->values * sizeof **documents;
    *documents = memory_alloc(index, *bytes);
    int64_t found = 0;
    const uint8_t *at = node->value;
    for (uint32_t i = 0; i < node->values; i++, at += value_bytes(at)) {
        uint32_t number = document_find(index, at + 3, u16_at(at + 1));
        if (number != NO_ITEM) (*documents)[found++] = number;
    }
    return found;
}

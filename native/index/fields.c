/* The binary form of a document's fields, in commands and in the index.
 *
 *     fields: u16 number of fields, then for each: u8 length of its name, the name, u16 number of values, the values
 *     value:  'b' u8 (0 or 1) | 'n' f64 (finite) | 's' u16 length, bytes
 *             't' i64 (seconds since 1970) | 'm' i64 (seconds since 1970), u32 (nanoseconds, 1 to 999,999,999)
 *
 * Numbers are little-endian. The form does not say whether a field with one value is a single value or an array of one
 * value. A field with several values is an array, and a field without values is an empty array. Names are unique in a
 * document and not empty. */
#include "index/fields.h"

#include "index/memory.h"

static bool is_fraction(uint32_t nanoseconds) { return nanoseconds > 0 && nanoseconds < 1000000000; }

static bool is_finite(const uint8_t *at) { return ((at[7] & 0x7f) << 4 | at[6] >> 4) != 0x7ff; }

const uint8_t *value_end(const uint8_t *at, const uint8_t *end) {
    if (end - at < 2) return NULL;
    switch (*at++) {
    case 'b': return *at <= 1 ? at + 1 : NULL;
    case 'n': return end - at >= 8 && is_finite(at) ? at + 8 : NULL;
    case 't': return end - at >= 8 ? at + 8 : NULL;
    case 'm': return end - at >= 12 && is_fraction(u32_at(at + 8)) ? at + 12 : NULL;
    case 's': return end - at >= 2 && end - at - 2 >= u16_at(at) ? at + 2 + u16_at(at) : NULL;
    }
    return NULL;
}

size_t value_bytes(const uint8_t *value) {
    switch (*value) {
    case 'b': return 2;
    case 's': return 3u + u16_at(value + 1);
    case 'm': return 13;
    }
    return 9;
}

double value_number(const uint8_t *value) {
    uint64_t bits = 0;
    double number;
    for (unsigned i = 0; i < 8; i++) bits |= (uint64_t)value[1 + i] << (8 * i);
    memcpy(&number, &bits, sizeof number);
    return number;
}

bool value_equal(const uint8_t *a, const uint8_t *b) {
    if (*a != *b) return false;
    if (*a == 'n') return value_number(a) == value_number(b);
    size_t bytes = value_bytes(a);
    return bytes == value_bytes(b) && memcmp(a, b, bytes) == 0;
}

uint64_t value_hash(const uint8_t *value) {
    static const uint64_t KEY[2] = {0x71612d66696c7465ULL, 0x722076616c756573ULL};
    static const uint8_t ZERO[9] = {'n'};
    if (*value == 'n' && value_number(value) == 0) value = ZERO;
    return hash_bytes(KEY, value, value_bytes(value));
}

const uint8_t *fields_find(const uint8_t *fields, size_t length, const uint8_t *name, uint8_t name_length,
                           unsigned *values) {
    const uint8_t *at = fields + 2;
    if (!length) return NULL;
    for (unsigned left = u16_at(fields); left; left--) {
        bool found = *at == name_length && memcmp(at + 1, name, name_length) == 0;
        at += 1 + *at;
        unsigned count = u16_at(at);
        at += 2;
        if (found) {
            *values = count;
            return at;
        }
        for (; count; count--) at += value_bytes(at);
    }
    return NULL;
}

bool fields_contain(const uint8_t *fields, size_t length, const uint8_t *name, uint8_t name_length) {
    const uint8_t *at = fields + 2;
    if (!length) return false;
    for (unsigned left = u16_at(fields); left; left--) {
        bool starts = *at >= name_length && memcmp(at + 1, name, name_length) == 0;
        if (starts && (*at == name_length || at[1 + name_length] == '.')) return true;
        at += 1 + *at;
        unsigned count = u16_at(at);
        at += 2;
        for (; count; count--) at += value_bytes(at);
    }
    return false;
}

enum { MAX_FIELDS = 256 }; /* small, because fields_valid() compares each name with all names before it */

bool fields_valid(const uint8_t *bytes, size_t length) {
    const uint8_t *at = bytes, *end = bytes + length, *names[MAX_FIELDS];
    if (length < 2 || u16_at(at) > MAX_FIELDS) return false;
    unsigned count = u16_at(at);
    at += 2;
    for (unsigned i = 0; i < count; i++) {
        if (end - at < 3 || !*at || end - at < 3 + *at) return false;
        names[i] = at;
        for (unsigned j = 0; j < i; j++)
            if (memcmp(names[j], at, 1 + (size_t)*at) == 0) return false;
        at += 1 + *at;
        unsigned values = u16_at(at);
        at += 2;
        for (; values; values--)
            if (!(at = value_end(at, end))) return false;
    }
    return at == end;
}

bool index_fields_valid(const void *bytes, size_t length) {
    return !length || (length <= INDEX_MAX_FIELDS && fields_valid(bytes, length));
}

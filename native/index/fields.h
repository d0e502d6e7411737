/* The fields of documents, in the binary form that fields.c describes. A field has a name and any number of values. */
#pragma once

#include "index/structure.h"

static inline uint16_t u16_at(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }
static inline uint32_t u32_at(const uint8_t *at) { return u16_at(at) | (uint32_t)u16_at(at + 2) << 16; }

/* Checks the value at `at` and returns its end. NULL: the value is damaged. */
const uint8_t *value_end(const uint8_t *at, const uint8_t *end);
/* The size in bytes of a value that value_end has checked. */
size_t value_bytes(const uint8_t *value);
/* True: the values are equal. Values of different types are unequal. The numbers -0 and 0 are equal. */
bool value_equal(const uint8_t *a, const uint8_t *b);
uint64_t value_hash(const uint8_t *value);
double value_number(const uint8_t *value);
bool fields_valid(const uint8_t *bytes, size_t length);
/* Finds the values of a field. Sets *values to the number of values and returns the first value. NULL: the document
 * does not have the field. */
const uint8_t *fields_find(const uint8_t *fields, size_t length, const uint8_t *name, uint8_t name_length,
                           unsigned *values);
/* True: there is a field with this name, or a field whose name starts with this name and a dot. */
bool fields_contain(const uint8_t *fields, size_t length, const uint8_t *name, uint8_t name_length);

/* Terms and their numbers. A term's number is the position of its Entry in `entries` of the index. */
#pragma once

#include "index/structure.h"

/* Returns the number of the term with these bytes. NO_ITEM: the term is not in the index. */
uint32_t dictionary_find(const Index *index, const void *bytes, size_t length);
/* Returns the number of a term. Adds the term if it is missing, and sets *is_new to whether it was missing. NO_ITEM: no
 * number, or no space for the bytes of the term, is left. */
uint32_t dictionary_add(Index *index, const void *bytes, size_t length, bool *is_new);
/* Removes a term without postings. Returns how many terms the removal has hashed, a measure of its time. */
uint32_t dictionary_remove(Index *index, uint32_t term);
/* Returns the bytes of a term, and sets *length to their number. */
const uint8_t *dictionary_text(const Index *index, const Entry *entry, size_t *length);
/* The functions `hash` and `fetch` (Table in structure.h) of the table of terms. */
uint64_t dictionary_hash(const Index *index, uint32_t term);
void dictionary_fetch(const Index *index, uint32_t term, bool first);
void dictionary_free(Index *index);

/* Terms and their numbers. */
#pragma once

#include "index/structure.h"

/* NO_ITEM: the term is not in the index. */
uint32_t dictionary_find(const Index *index, const void *bytes, size_t length);
/* Returns the number of a known or a new term. NO_ITEM: no number is left. */
uint32_t dictionary_add(Index *index, const void *bytes, size_t length, bool *is_new);
/* Removes a term. Returns the number of terms that the removal has hashed. */
uint32_t dictionary_remove(Index *index, uint32_t term);
const uint8_t *dictionary_text(const Index *index, const Entry *entry, size_t *length);
uint64_t dictionary_hash(const Index *index, uint32_t term);
void dictionary_fetch(const Index *index, uint32_t term, bool first);
void dictionary_free(Index *index);

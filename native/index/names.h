/* The names of the fields of live documents. */
#pragma once

#include "index/structure.h"

/* Counts the fields and values of a document. `sign` +1: adds the counts, when the document becomes live or gets these
 * fields. -1: subtracts the counts, when the document is no longer live or loses these fields. */
void field_names_count(Index *index, const uint8_t *fields, size_t length, int sign);
/* The functions `hash` and `fetch` (Table in structure.h) of the table of names. */
uint64_t field_names_hash(const Index *index, uint32_t number);
void field_names_fetch(const Index *index, uint32_t number, bool first);
void field_names_free(Index *index);

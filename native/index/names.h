/* The names of the fields of live documents. */
#ifndef QA_INDEX_NAMES_H
#define QA_INDEX_NAMES_H

#include "index/structure.h"

/* Counts the fields of a document that becomes live (+1), or is no longer live (-1). */
void field_names_count(Index *index, const uint8_t *fields, size_t length, int sign);
uint64_t field_names_hash(const Index *index, uint32_t number);
void field_names_fetch(const Index *index, uint32_t number, bool first);
void field_names_free(Index *index);

#endif

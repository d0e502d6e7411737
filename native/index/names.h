/* The names of the fields of live documents. */
#pragma once

#include "index/structure.h"

/* Counts the fields of a document. `sign` +1: the document becomes live. -1: it is no longer live. */
void field_names_count(Index *index, const uint8_t *fields, size_t length, int sign);
uint64_t field_names_hash(const Index *index, uint32_t number);
void field_names_fetch(const Index *index, uint32_t number, bool first);
void field_names_free(Index *index);

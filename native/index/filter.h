/* Filters on documents. */
#pragma once

#include "index/structure.h"

/* True: the document satisfies the filter. */
bool filter_matches(const IndexFilter *filter, const Document *document);
/* Finds the documents that the filter names by their ids, in any order. Only these documents can satisfy the filter.
 * Returns how many these are, and sets *documents to an array of their numbers and *bytes to the size of the array. The
 * caller frees the array with memory_free(index, *documents, *bytes). Returns -1, and no array, if the filter names no
 * ids. */
int64_t filter_documents(Index *index, const IndexFilter *filter, uint32_t **documents, size_t *bytes);

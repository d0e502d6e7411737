/* Filters on documents. */
#pragma once

#include "index/structure.h"

/* True: the document satisfies the filter. */
bool filter_matches(const IndexFilter *filter, const Document *document);
/* Finds the documents that the filter names by their ids, in any order. Only these documents can satisfy the filter.
 * Returns their number, or -1 if the filter names no ids. The caller frees *documents with memory_free and *bytes. */
int64_t filter_documents(Index *index, const IndexFilter *filter, uint32_t **documents, size_t *bytes);

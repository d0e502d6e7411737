/* Filters on documents. */
#ifndef QA_INDEX_FILTER_H
#define QA_INDEX_FILTER_H

#include "index/structure.h"

/* True: the filter admits the document. */
bool filter_matches(const IndexFilter *filter, const Document *document);
/* The numbers of the only documents that the filter can admit, in no particular order. Returns their number, or -1: the
 * filter does not name documents by their ids. The caller frees *documents with memory_free and *bytes. */
int64_t filter_documents(Index *index, const IndexFilter *filter, uint32_t **documents, size_t *bytes);

#endif

/* Documents that are open. */
#ifndef QA_INDEX_OPEN_H
#define QA_INDEX_OPEN_H

#include "index/structure.h"

/* The lowest id of all open documents. NO_ID: no document is open. */
uint64_t open_first(const Index *index);

#endif

/* Documents that are open. */
#pragma once

#include "index/structure.h"

/* The lowest id of all open documents. NO_ID: no document is open. */
uint64_t open_first(const Index *index);

/* Documents that are open: begun, but neither committed nor aborted. */
#pragma once

#include "index/structure.h"

/* The lowest place of all open documents (index.h). NO_ID: no document is open. */
uint64_t open_first(const Index *index);

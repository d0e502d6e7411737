/* Packed blocks of postings (index.h: a posting has a sentence id and a code). */
#pragma once

#include "index/structure.h"

/* Packs postings. `count` must be 1 to BLOCK_POSTINGS. The ids must ascend, and the last id minus the first id must be
 * less than 2^32. */
Block block_new(Index *index, const uint64_t *ids, const uint8_t *codes, unsigned count);
void block_free(Index *index, Block *block);
void block_decode(const Block *block, Decoded *out);

/* Packed blocks of postings. */
#pragma once

#include "index/structure.h"

/* `count` must be 1 to BLOCK_POSTINGS. The ids must ascend, and the last id must be less than 2^32 above the first. */
Block block_new(Index *index, const uint64_t *ids, const uint8_t *codes, unsigned count);
void block_free(Index *index, Block *block);
void block_decode(const Block *block, Decoded *out);

/* The postings of a term, in any of their three forms (postings.c). index.h defines posting, code and dead. */
#pragma once

#include "index/structure.h"

View postings_view(const Entry *entry);
void view_decode(const View *view, uint32_t block, Decoded *out);

static inline uint64_t view_last(const View *view, uint32_t block) {
    return block < view->block_count ? view->blocks[block].last : view->tail_last;
}

static inline uint8_t view_max(const View *view, uint32_t block) {
    return block < view->block_count ? view->blocks[block].max : view->tail_max;
}

uint32_t postings_count(const Entry *entry);
/* Appends a posting. The id must not be less than the last id. If it equals the last id, does nothing and returns
 * false. */
bool postings_append(Index *index, Entry *entry, uint64_t id, uint8_t code);
void postings_free(Index *index, Entry *entry);
/* Removes the postings of dead documents, starting at block *block (0 in the first call), until the budget is used up.
 * True: all postings of the term were checked. False: call it again with the new *block to continue. */
bool postings_purge(Index *index, Entry *entry, uint32_t *block, int64_t *budget);

/* Documents and their forward lists. A forward list has the numbers of a document's terms, each with the number of the
 * document's sentences that contain the term. A document's number is its position in `documents` of the index. */
#pragma once

#include "index/structure.h"

/* Returns the number of the live document with this id. NO_ITEM: no live document has this id. */
uint32_t document_find(const Index *index, const void *id, size_t length);
size_t document_bytes(const Document *document);
const uint8_t *document_forward(const Document *document);

/* Does overdue work on document frequencies and runs (struct Work), until no work is left or the budget is used up.
 * Subtracts the units of this work from *budget. */
void documents_work(Index *index, int64_t *budget);
void documents_free(Index *index);
/* The functions `hash` and `fetch` (Table in structure.h) of the table of documents. */
uint64_t documents_hash(const Index *index, uint32_t number);
void documents_fetch(const Index *index, uint32_t number, bool first);

/* For load.c: adds a live document without sentences and returns its number. load.c adds the sentences and postings
 * afterwards. NO_ITEM: no number is left. */
uint32_t documents_restore(Index *index, const void *id, size_t id_length, const void *fields, size_t field_length);
/* For load.c: adds an open document without sentences. NULL: no number is left. */
IndexPending *documents_reopen(Index *index, const void *id, size_t id_length, const void *fields, size_t field_length);
/* Makes `document` the document with this number, for example after its memory has moved. Does not free the document
 * that had the number before. */
void documents_replace(Index *index, uint32_t number, Document *document);

/* Appends a term and the number of the document's sentences that contain the term, in at most FORWARD_BYTES bytes.
 * *last is the previous term, or -1 at the start of the list. Returns the position after the term. */
enum { FORWARD_BYTES = 12 };
uint8_t *forward_put(uint8_t *at, int64_t *last, uint32_t term, uint32_t count);
/* Reads the next term and the number of the document's sentences that contain it. On entry, *term is the previous term,
 * or -1 at the start of the list. Returns the position after the term. */
const uint8_t *forward_get(const uint8_t *at, int64_t *term, uint64_t *count);

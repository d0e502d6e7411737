/* The filter of documents (index/filter.c) as an argument of the commands on an index. */
#pragma once

#include "index/index.h"
#include "server/args.h"

/* Reads [FILTER bytes]. If it is missing, sets *bytes to NULL. Returns NULL or an error line. */
const char *filter_argument(Cursor *cursor, const void **bytes, size_t *length);

/* Compiles a filter. Returns NULL or an error line. The caller frees *filter, which may be NULL, with filter_free. */
const char *filter_compile(const void *bytes, size_t length, IndexFilter **filter);
void filter_free(IndexFilter *filter);

/* The filter among the arguments of commands on an index. */
#ifndef QA_FILTER_ARGUMENT_H
#define QA_FILTER_ARGUMENT_H

#include "index/index.h"
#include "server/args.h"

/* Steps over [FILTER bytes]; without it, *bytes becomes NULL. NULL or an error line. */
const char *filter_argument(Cursor *cursor, const void **bytes, size_t *length);

/* Compiles a filter, which filter_free takes also if it is NULL. NULL or an error line. */
const char *filter_compile(const void *bytes, size_t length, IndexFilter **filter);
void filter_free(IndexFilter *filter);

#endif

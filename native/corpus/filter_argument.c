/* A filter does not depend on an index, so it is compiled for an empty index. */
#include "corpus/filter_argument.h"

#include "corpus/stored_index.h"

const char *filter_argument(Cursor *cursor, const void **bytes, size_t *length) {
    *bytes = NULL;
    if (!cursor_accept(cursor, "FILTER")) return NULL;
    if (cursor->at == cursor->argc) return "ERR FILTER must be followed by a filter";
    *bytes = RedisModule_StringPtrLen(cursor->argv[cursor->at++], length);
    return NULL;
}

const char *filter_compile(const void *bytes, size_t length, IndexFilter **filter) {
    *filter = index_filter_new(stored_index_none(), bytes, length);
    return *filter ? NULL : "ERR filter is not valid";
}

void filter_free(IndexFilter *filter) { index_filter_free(stored_index_none(), filter); }

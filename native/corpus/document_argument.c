/* Checks documents before any change. */
#include "corpus/document_argument.h"

#include <stdio.h>

const char *document_head(RedisModuleString **argv, int number, Document *document, char *error) {
    document->id = RedisModule_StringPtrLen(argv[0], &document->id_length);
    document->fields = RedisModule_StringPtrLen(argv[1], &document->fields_length);
    if (!document->id_length || document->id_length > INDEX_MAX_DOCUMENT_ID) {
        snprintf(error, MAX_DOCUMENT_ERROR, "ERR document %d: its id has %zu bytes, it must have 1 to %d", number,
                 document->id_length, INDEX_MAX_DOCUMENT_ID);
        return error;
    }
    if (!index_fields_valid(document->fields, document->fields_length)) {
        snprintf(error, MAX_DOCUMENT_ERROR, "ERR document %d: its fields are not valid", number);
        return error;
    }
    return NULL;
}

const char *document_sentences(RedisModuleString *argument, int number, Document *document, char *error) {
    document->sentences = RedisModule_StringPtrLen(argument, &document->sentences_length);
    if (!index_packed_check(document->sentences, document->sentences_length, &document->packed)) {
        snprintf(error, MAX_DOCUMENT_ERROR, "ERR document %d: %s, at byte %zu of its sentences", number,
                 document->packed.problem, document->packed.offset);
        return error;
    }
    return NULL;
}

void document_comes(Watched *watched, Index *index, const Document *document) {
    if (!watched) return;
    IndexIncoming incoming = {.id = document->id,
                              .fields = document->fields,
                              .sentences = document->sentences,
                              .id_length = document->id_length,
                              .fields_length = document->fields_length,
                              .sentences_length = document->sentences_length};
    index_watch_adding(watched->watch, index, &incoming);
}

/* A document among the arguments of commands that write to an index. */
#ifndef QA_DOCUMENT_ARGUMENT_H
#define QA_DOCUMENT_ARGUMENT_H

#include "corpus/watched.h"
#include "index/index.h"

enum { MAX_DOCUMENT_ERROR = 200 };

typedef struct Document {
    const char *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
    IndexPacked packed;
} Document;

/* Reads id and fields, or the sentences. NULL or an error line in `error`, which calls the document by its number. */
const char *document_head(RedisModuleString **argv, int number, Document *document, char *error);
const char *document_sentences(RedisModuleString *argument, int number, Document *document, char *error);

/* Tells the questions of a key, if it has any, that sentences of a document come. */
void document_comes(Watched *watched, Index *index, const Document *document);

#endif

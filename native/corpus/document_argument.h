/* Documents as arguments of the commands that write to an index. */
#pragma once

#include "corpus/watched.h"
#include "index/index.h"

enum { MAX_DOCUMENT_ERROR = 200 };

typedef struct Document {
    const char *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
    IndexPacked packed;
} Document;

/* document_head reads the id and the fields, and document_sentences reads the sentences. Both return NULL, or an error
 * line in `error` that names the document by its number. */
const char *document_head(RedisModuleString **argv, int number, Document *document, char *error);
const char *document_sentences(RedisModuleString *argument, int number, Document *document, char *error);

/* Compares the new sentences of a document with the watched questions of the key. `watched` may be NULL. */
void document_comes(Watched *watched, Index *index, const Document *document);

enum { METADATA_MAX_DEPTH = 32 };

/* True: the text is one JSON object that every parser reads in the same way. Limits: METADATA_MAX_DEPTH levels, finite
 * numbers, integers of 64 bits, surrogates only in pairs. The text must be UTF-8 and end with a NUL. */
bool document_metadata_valid(const char *text, size_t length);

/* Documents as arguments of the commands that write to an index, and the check of a document's metadata. */
#pragma once

#include "corpus/watched.h"
#include "index/index.h"

enum { MAX_DOCUMENT_ERROR = 200 };

typedef struct Document {
    const char *id, *fields, *sentences;
    size_t id_length, fields_length, sentences_length;
    IndexPacked packed;
} Document;

/* document_head reads the id and the fields from two arguments, and document_sentences reads the sentences from one
 * argument. Both functions check what they read, and return NULL or an error line. `error` is the buffer for the error
 * line, with MAX_DOCUMENT_ERROR bytes. `number` is the number of the document in the error line. */
const char *document_head(RedisModuleString **argv, int number, Document *document, char *error);
const char *document_sentences(RedisModuleString *argument, int number, Document *document, char *error);

/* Drops the watched questions (index.h) of the key whose answers the new sentences of a document may change. Call it
 * between watched_begin and watched_end. `watched` may be NULL. */
void document_comes(Watched *watched, Index *index, const Document *document);

enum { METADATA_MAX_DEPTH = 32 };

/* True: the text is one JSON object that JSON parsers of all languages can read. Limits: METADATA_MAX_DEPTH levels,
 * finite numbers, integers that fit into 64 bits, surrogates only in pairs. The caller has checked that the text is
 * UTF-8. A NUL must follow the text. */
bool document_metadata_valid(const char *text, size_t length);

/* The names of keys with texts of documents: `paragraphs:<name>:{tag}`. <name> is the document's id, in which `%`, `{`
 * and `}` are encoded as in URLs. If the document is in a collection, <name> starts with `<collection>%/`.
 * `parse_tagged` in qa_cluster/keys.py has the same rule (tests/module/test_notes.py compares both). */
#pragma once

#include <stdbool.h>

#include "server/module_api.h"

/* The parts of the name of such a key. The pointers point into the name. */
typedef struct TextKey {
    const char *name;
    size_t name_length;
    size_t collection_length; /* of the collection at the start of the name; 0: the default collection */
    const char *tag;          /* `{tag}`, the end of the key */
    size_t tag_length;
} TextKey;

/* True: the key starts with `paragraphs:`. Use this function to skip other keys fast. */
bool text_key_may_be(const char *key, size_t length);

/* Parses the key of a text that belongs to a partition. False: the key does not have the form of such a key. */
bool text_key_parse(RedisModuleString *key, TextKey *parsed);

bool text_is_utf8(const char *text, size_t length);

/* True: the name is valid for a collection, and is not the name of the default collection. */
bool text_is_collection(const char *name, size_t length);

/* Returns a new string: `start`, then `length` bytes of `middle`, then `end_length` bytes of `end`. The caller frees it
 * with RedisModule_FreeString(NULL, ..). */
RedisModuleString *text_key_joined(const char *start, const char *middle, size_t length, const char *end,
                                   size_t end_length);

/* Texts and lists of names, which are parts of the module's values: saves them, loads them and measures their
 * memory. */
#pragma once

#include <stddef.h>

#include "server/module_api.h"

#define NAMES_MAX 1024        /* the limit of the number of inputs, outputs or entry points */
#define TEXT_MAX (1ULL << 20) /* the limit of tags and names in bytes */

typedef struct Text {
    size_t length;
    char *data; /* ends with a NUL; never NULL */
} Text;

typedef struct Names {
    size_t n;
    Text *items;
} Names;

Text text_new(const char *data, size_t length);
Text text_of(RedisModuleString *string);
/* Returns NULL, or an error line if a string is longer than TEXT_MAX. A saved string of this length could not be
 * loaded. */
const char *texts_check(RedisModuleString **strings, int n);
/* Replaces the text with a copy of `data`. */
void text_set(Text *text, const char *data, size_t length);

/* Returns `n` empty names. */
Names names_new(size_t n);
Names names_of(RedisModuleString **strings, int n);
Names names_copy(const Names *names);
void names_free(Names *names);
size_t names_memory(const Names *names);
/* Replies with each name as an element. */
void names_emit(RedisModuleCtx *ctx, const Names *names);
/* Replies with all names as one array. */
void names_reply(RedisModuleCtx *ctx, const Names *names);

void text_save(RedisModuleIO *io, const Text *text);
void names_save(RedisModuleIO *io, const Names *names);
/* Read a text or a list of names, and replace *text or *names. 0: the file is damaged. *text and *names can be freed in
 * both cases. */
int text_load(RedisModuleIO *io, size_t max, Text *text);
int names_load(RedisModuleIO *io, Names *names);
void names_digest(RedisModuleDigest *digest, const Names *names);

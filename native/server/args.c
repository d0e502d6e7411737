/* These functions report a wrong argument with their return value: 0 or an error line. The caller replies to the
 * client. */
#include "server/args.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

int arg_is(RedisModuleString *argument, const char *word) {
    size_t length;
    const char *text = RedisModule_StringPtrLen(argument, &length);
    return length == strlen(word) && !strncasecmp(text, word, length);
}

int arg_count(RedisModuleString *argument, long long max, long long *value) {
    return RedisModule_StringToLongLong(argument, value) == REDISMODULE_OK && *value >= 0 && *value <= max;
}

int arg_comes_twice(RedisModuleString **argv, int first, int step, int at) {
    size_t length, other_length;
    const char *text = RedisModule_StringPtrLen(argv[at], &length);
    for (; first < at; first += step) {
        const char *other = RedisModule_StringPtrLen(argv[first], &other_length);
        if (length == other_length && !memcmp(text, other, length)) return 1;
    }
    return 0;
}

int list_next(const char **at, size_t *left, const char **word, size_t *length) {
    if (!*left) return 0;
    const char *comma = memchr(*at, ',', *left);
    *word = *at;
    *length = comma ? (size_t)(comma - *at) : *left;
    *left -= *length + (comma != NULL);
    *at += *length + (comma != NULL);
    return 1;
}

int cursor_accept(Cursor *cursor, const char *word) {
    if (cursor->at >= cursor->argc || !arg_is(cursor->argv[cursor->at], word)) return 0;
    cursor->at++;
    return 1;
}

int cursor_count(Cursor *cursor, long long max, long long *value) {
    return cursor->at < cursor->argc && arg_count(cursor->argv[cursor->at++], max, value);
}

int cursor_range(Cursor *cursor, long long n, ArgRange *range) {
    if (n > cursor->argc - cursor->at) return 0;
    *range = (ArgRange){cursor->at, (int)n};
    cursor->at += (int)n;
    return 1;
}

const char *cursor_timeout(Cursor *cursor, const char *missing, long long *timeout_ms) {
    if (cursor->at == cursor->argc) return missing;
    return cursor_count(cursor, INT_MAX, timeout_ms) && *timeout_ms ? NULL : "ERR Invalid value for TIMEOUT";
}

void line_clean(char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\r' || text[i] == '\n' || text[i] == '\0') text[i] = ' ';
}

const char *arg_error(char *error, size_t size, const char *before, RedisModuleString *argument) {
    snprintf(error, size, "%s%.100s", before, RedisModule_StringPtrLen(argument, NULL));
    line_clean(error, strlen(error));
    return error;
}

ArgList arg_list_new(size_t room) { return (ArgList){RedisModule_Alloc(room * sizeof(RedisModuleString *)), 0}; }

ArgList arg_list_of(RedisModuleString **argv, ArgRange range) {
    ArgList list = arg_list_new((size_t)range.n);
    for (int i = 0; i < range.n; i++) arg_list_hold(&list, argv[range.first + i]);
    return list;
}

int arg_list_emit(RedisModuleCtx *ctx, const ArgList *list) {
    for (size_t i = 0; i < list->n; i++) RedisModule_ReplyWithString(ctx, list->items[i]);
    return (int)list->n;
}

void arg_list_add(ArgList *list, const char *text, size_t length) {
    list->items[list->n++] = RedisModule_CreateString(NULL, text, length);
}

void arg_list_hold(ArgList *list, RedisModuleString *string) {
    list->items[list->n++] = RedisModule_HoldString(NULL, string);
}

void arg_list_word(ArgList *list, const char *word) { arg_list_add(list, word, strlen(word)); }

void arg_list_number(ArgList *list, long long number) {
    list->items[list->n++] = RedisModule_CreateStringFromLongLong(NULL, number);
}

void arg_list_free(ArgList *list) {
    for (size_t i = 0; i < list->n; i++) RedisModule_FreeString(NULL, list->items[i]);
    RedisModule_Free(list->items);
}

/* These functions do not reply to the client. They report wrong arguments by their return values. */
#include "server/args.h"

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

int cursor_accept(Cursor *cursor, const char *word) {
    if (cursor->at >= cursor->argc || !arg_is(cursor->argv[cursor->at], word)) return 0;
    cursor->at++;
    return 1;
}

int cursor_count(Cursor *cursor, long long max, long long *value) {
    return cursor->at < cursor->argc && arg_count(cursor->argv[cursor->at++], max, value);
}

const char *arg_error(char *error, size_t size, const char *before, RedisModuleString *argument) {
    snprintf(error, size, "%s%.100s", before, RedisModule_StringPtrLen(argument, NULL));
    for (char *at = error; *at; at++)
        if (*at == '\r' || *at == '\n') *at = ' ';
    return error;
}

ArgList arg_list_new(size_t room) { return (ArgList){RedisModule_Alloc(room * sizeof(RedisModuleString *)), 0}; }

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

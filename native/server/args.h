/* Arguments of commands: keywords, numbers, a cursor to read arguments, and a builder for lists of arguments. */
#pragma once

#include <stddef.h>

#include "server/module_api.h"

/* 1: the argument is `word`, in upper or lower case. */
int arg_is(RedisModuleString *argument, const char *word);

/* Reads an integer from 0 to `max`. Returns 1, or 0 if the argument is not such an integer. */
int arg_count(RedisModuleString *argument, long long max, long long *value);

/* 1: argv[at] equals one of the earlier arguments argv[first], argv[first + step], argv[first + 2 * step] and so on. */
int arg_comes_twice(RedisModuleString **argv, int first, int step, int at);

/* Removes the first word from a comma-separated list. The list is the *left bytes at *at. Sets *word and *length to the
 * word, which may be empty, and moves *at and *left past the word and its comma. Returns 1, or 0 if the list is
 * empty. */
int list_next(const char **at, size_t *left, const char **word, size_t *length);

/* A position in argv: `at` is the index of the next argument to read. */
typedef struct Cursor {
    RedisModuleString **argv;
    int argc, at;
} Cursor;

/* Moves past the next argument if it is `word`. 0: there is no next argument, or it is a different word; the cursor has
 * not moved. */
int cursor_accept(Cursor *cursor, const char *word);
/* Moves past one argument and reads it like arg_count. 0: the argument is missing or is not an integer from 0 to
 * `max`. */
int cursor_count(Cursor *cursor, long long max, long long *value);

/* A range of argv: position of the first argument, and number of arguments. */
typedef struct ArgRange {
    int first, n;
} ArgRange;

/* Moves past the next `n` arguments and sets *range to these arguments. Returns 1, or 0 if there are fewer
 * arguments. */
int cursor_range(Cursor *cursor, long long n, ArgRange *range);
/* Reads the value of TIMEOUT, in milliseconds. Returns NULL or an error line; `missing` is the error for a missing
 * value. */
const char *cursor_timeout(Cursor *cursor, const char *missing, long long *timeout_ms);

/* Replaces line ends and NULs by blanks. */
void line_clean(char *text, size_t length);
/* Writes an error line to `error`: `before`, and then the argument, shortened and on one line. Returns `error`. */
const char *arg_error(char *error, size_t size, const char *before, RedisModuleString *argument);

/* Strings, for example the arguments of a command for replicas or the AOF. */
typedef struct ArgList {
    RedisModuleString **items;
    size_t n;
} ArgList;

ArgList arg_list_new(size_t room);
/* Returns a list with new references to the strings of a range of argv. */
ArgList arg_list_of(RedisModuleString **argv, ArgRange range);
/* Replies with each string as one element. Returns their number. */
int arg_list_emit(RedisModuleCtx *ctx, const ArgList *list);
void arg_list_add(ArgList *list, const char *text, size_t length);
/* Adds a string, with a new reference. The caller still owns its reference. */
void arg_list_hold(ArgList *list, RedisModuleString *string);
void arg_list_word(ArgList *list, const char *word);
void arg_list_number(ArgList *list, long long number);
void arg_list_free(ArgList *list);

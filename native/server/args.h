/* Command arguments: keywords, counted lists, stepping over them and building them. */
#ifndef QA_ARGS_H
#define QA_ARGS_H

#include <stddef.h>

#include "server/module_api.h"

/* 1: the argument is `word`, in any case. */
int arg_is(RedisModuleString *argument, const char *word);

/* Reads a non-negative integer of at most `max`. 1 when it is one. */
int arg_count(RedisModuleString *argument, long long max, long long *value);

/* 1: argv[at] is the same as argv[first], argv[first + step] or another before it. */
int arg_comes_twice(RedisModuleString **argv, int first, int step, int at);

/* Steps over argv. */
typedef struct Cursor {
    RedisModuleString **argv;
    int argc, at;
} Cursor;

/* Steps over `word` if it comes next. */
int cursor_accept(Cursor *cursor, const char *word);
/* Steps over one argument; 1 when it was a number that arg_count reads. 0 also at the end. */
int cursor_count(Cursor *cursor, long long max, long long *value);

/* Writes `before` and the argument, shortened and on one line, into an error line. Returns `error`. */
const char *arg_error(char *error, size_t size, const char *before, RedisModuleString *argument);

/* Arguments of a command that is sent to replicas or written to the AOF. */
typedef struct ArgList {
    RedisModuleString **items;
    size_t n;
} ArgList;

ArgList arg_list_new(size_t room);
void arg_list_add(ArgList *list, const char *text, size_t length);
/* Adds a reference; the caller keeps its own. */
void arg_list_hold(ArgList *list, RedisModuleString *string);
void arg_list_word(ArgList *list, const char *word);
void arg_list_number(ArgList *list, long long number);
void arg_list_free(ArgList *list);

#endif

/* Command arguments: keywords and counted lists. */
#ifndef QA_ARGS_H
#define QA_ARGS_H

#include "module_api.h"

/* 1: the argument is `word`, in any case. */
int arg_is(RedisModuleString *argument, const char *word);

/* Reads a non-negative integer of at most `max`. 1 when it is one. */
int arg_count(RedisModuleString *argument, long long max, long long *value);

#endif

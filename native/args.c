/* Command arguments: keywords and counted lists. */
#include "args.h"

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

/* Defines the pointers to the functions of the module API. module_api_load fills them in before any other code runs. */
#include "server/module_api.h"

#include <string.h>

#define DEFINE(returns, name, arguments) returns(*RedisModule_##name) arguments;
REDISMODULE_REQUIRED_FUNCTIONS(DEFINE)
REDISMODULE_OPTIONAL_FUNCTIONS(DEFINE)
#undef DEFINE

/* The first field of a module's context is a pointer to the function that looks up all other API functions. The other
 * fields may change between server versions. */
const char *module_api_load(RedisModuleCtx *ctx) {
    int (*get_api)(const char *, void *) = NULL;
    memcpy(&get_api, ctx, sizeof get_api);
#define FETCH(name) get_api("RedisModule_" #name, (void *)&RedisModule_##name)
#define REQUIRE(returns, name, arguments)                                                                              \
    if (FETCH(name) != REDISMODULE_OK) return #name;
#define TRY(returns, name, arguments)                                                                                  \
    if (FETCH(name) != REDISMODULE_OK) RedisModule_##name = NULL;
    REDISMODULE_REQUIRED_FUNCTIONS(REQUIRE)
    REDISMODULE_OPTIONAL_FUNCTIONS(TRY)
#undef TRY
#undef REQUIRE
#undef FETCH
    return NULL;
}

/* How scripts behave as runnables. Each owns its source. */
#include "values/script.h"

static void script_free_bytes(Runnable *runnable) {
    Script *script = (Script *)runnable;
    RedisModule_Free(script->source.data);
    script->source.data = NULL;
}

static void script_free_rest(Runnable *runnable) {
    names_free(&((Script *)runnable)->entry_points);
    RedisModule_Free(runnable);
}

const RunnableClass script_class = {
    .type = "SCRIPT", .noun = "script", .backend = "TORCH", .free_bytes = script_free_bytes, .free = script_free_rest};

Script *script_new(const char *device) {
    Script *script = RedisModule_Calloc(1, sizeof *script);
    runnable_init(&script->run, &script_class, device);
    script->source = text_new("", 0);
    return script;
}

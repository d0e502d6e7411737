/* The settings `qa.*` of the server's configuration, the load arguments and RG.CONFIGSET. */
#ifndef QA_CONFIG_H
#define QA_CONFIG_H

#include "module_api.h"

typedef struct Config {
    char *worker_command;
    long long max_queue;
    long long max_events;
    long long job_timeout_ms;
    long long hook_timeout_ms;
    long long script_timeout_ms;
    long long cancel_grace_ms;
    long long worker_silence_ms;
    long long worker_start_ms;
    long long atomic_lease_ms;
    long long worker_backoff_ms;
    long long worker_memory_mb;
    long long worker_threads;
    long long max_model_mb;
} Config;

extern Config config;

/* Registers and loads the settings, then stores the load arguments (name, value pairs). */
int config_on_load(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

/* Every qa.* setting as name, value elements; returns the number of elements (for QA.HELLO). */
int config_reply_pairs(RedisModuleCtx *ctx);

/* Splits a worker command into words: spaces separate, double quotes group, backslash escapes. NULL with *count 0 when it is
 * empty, NULL with *count -1 when a quote is not closed. One allocation, freed with RedisModule_Free. */
char **config_split_command(const char *command, int *count);

int config_get_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc); /* RG.CONFIGGET */
int config_set_command(RedisModuleCtx *ctx, RedisModuleString **argv, int argc); /* RG.CONFIGSET */

#endif

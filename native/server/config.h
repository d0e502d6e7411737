/* The settings `qa.*` of the server's configuration. */
#pragma once

#include "server/module_api.h"

/* Limits of AI.CONFIG MODEL_CHUNK_SIZE, in bytes. */
#define MODEL_CHUNK_MIN 64
#define MODEL_CHUNK_MAX (1LL << 40)

typedef struct Config {
    char *worker_command;
    char *bus_key_file;        /* empty: unset */
    char *model_cache_dir;     /* empty: unset */
    char *worker_environment;  /* names of variables, separated by commas */
    char *answer_keys;         /* "text" or "digest" */
    char *bulk_users;          /* names of users, separated by spaces */
    char *adopt_registrations; /* "yes": load registrations without a valid signature */
    long long max_queue;
    long long worker_ahead;
    long long shared_ahead;
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
    long long inference_workers;
    long long max_batch_tokens;
    long long max_model_mb;
    long long max_tensor_mb;
    long long threads_per_queue;
    long long intra_op_parallelism;
    long long inter_op_parallelism;
    long long model_timeout_ms;
    long long backend_memory_mb;
    long long model_processes;
    long long model_memory_mb; /* 0: no limit */
    long long model_load_timeout_ms;
    long long max_watched;
    long long whole_answers_bytes; /* limit of the cached answers to questions over all documents, in each partition */
    long long function_threads;
    long long background_timeout_ms; /* 0: no limit */
    long long background_embedding;  /* 1: workers compute the vectors of documents; 0: only `prepare` does */
    long long model_chunk_size;      /* AI.CONFIG and the load argument MODEL_CHUNK_SIZE */
    char *backends_path;             /* AI.CONFIG and the load argument BACKENDSPATH; only stored */
} Config;

extern Config config;

/* Registers and loads the settings. */
int config_on_load(RedisModuleCtx *ctx);

/* For QA.HELLO: replies with alternating names and values of the qa.* settings that the worker needs: all numbers, and
 * the texts worker-command, answer-keys and model-cache-dir. Returns the number of elements. */
int config_reply_pairs(RedisModuleCtx *ctx);

/* 1: the user does bulk work (qa.bulk-users). */
int config_is_bulk_user(const char *name, size_t length);

/* Splits a worker command into words. Spaces separate words, double quotes enclose a word with spaces, and a backslash
 * escapes a character.
 * NULL with *count 0: the command is empty. NULL with *count -1: a quote is not closed. The result is one allocation,
 * which the caller frees with RedisModule_Free. */
char **config_split_command(const char *command, int *count);

/* The settings of the server's configuration: numbers (SETTINGS) and texts (TEXTS). */
#include "server/config.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

Config config;

typedef struct Setting {
    const char *name; /* without the "qa." */
    long long *value;
    long long preset, min, max;
} Setting;

static const Setting SETTINGS[] = {
    {"max-queue", &config.max_queue, 1024, 1, 1000000},
    {"worker-ahead", &config.worker_ahead, 64, 1, 65536},
    {"shared-ahead", &config.shared_ahead, 1, 1, 65536},
    {"max-events", &config.max_events, 100000, 1, 10000000},
    {"job-timeout-ms", &config.job_timeout_ms, 30000, 1, 86400000},
    {"hook-timeout-ms", &config.hook_timeout_ms, 30000, 1, 86400000},
    {"script-timeout-ms", &config.script_timeout_ms, 600000, 1, 86400000},
    {"cancel-grace-ms", &config.cancel_grace_ms, 2000, 1, 600000},
    {"worker-silence-ms", &config.worker_silence_ms, 10000, 100, 600000},
    {"worker-start-ms", &config.worker_start_ms, 60000, 100, 3600000},
    {"atomic-lease-ms", &config.atomic_lease_ms, 1000, 1, 60000},
    {"worker-backoff-ms", &config.worker_backoff_ms, 50, 1, 5000},
    {"worker-memory-mb", &config.worker_memory_mb, 0, 0, 1 << 24},
    {"worker-threads", &config.worker_threads, 0, 0, 4096},
    {"inference-workers", &config.inference_workers, 0, 0, 64},
    {"max-batch-tokens", &config.max_batch_tokens, 1024, 16, 65536},
    {"max-model-mb", &config.max_model_mb, 2048, 1, 1 << 20},
    {"max-tensor-mb", &config.max_tensor_mb, 1024, 1, 1024},
    {"threads-per-queue", &config.threads_per_queue, 1, 1, 64},
    {"intra-op-parallelism", &config.intra_op_parallelism, 0, 0, 4096},
    {"inter-op-parallelism", &config.inter_op_parallelism, 0, 0, 4096},
    {"model-timeout-ms", &config.model_timeout_ms, 5000, 1000, 86400000},
    {"backend-memory-mb", &config.backend_memory_mb, 0, 0, 1 << 24},
    {"model-processes", &config.model_processes, 8, 0, 64},
    {"model-memory-mb", &config.model_memory_mb, 1024, 0, 1 << 24},
    {"model-load-timeout-ms", &config.model_load_timeout_ms, 20000, 1000, 3600000},
    {"max-watched-questions", &config.max_watched, 10000, 0, 1000000},
    {"whole-answers-bytes", &config.whole_answers_bytes, 16 << 20, 1, 1LL << 40},
    {"function-threads", &config.function_threads, 32, 1, 1024},
    {"background-timeout-ms", &config.background_timeout_ms, 0, 0, 2592000000LL},
    {"background-embedding", &config.background_embedding, 1, 0, 1},
};
enum { SETTING_COUNT = sizeof SETTINGS / sizeof *SETTINGS };

/* ---- Texts ---- */

/* Checks the value of qa.worker-command. Returns NULL, or an error (to be freed). */
static RedisModuleString *check_command(const char *text, size_t length) {
    int count;
    RedisModule_Free(config_split_command(text, &count));
    if (count >= 0) return NULL;
    return RedisModule_CreateStringPrintf(NULL, "qa.worker-command has an unclosed double quote: %.200s", text);
}

/* Accepts any text as the value of a setting that is a path. The part that uses the path reports a path that cannot be
 * used. */
static RedisModuleString *check_path(const char *text, size_t length) { return NULL; }

static RedisModuleString *check_environment(const char *text, size_t length) {
    static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    static const char DIGITS[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    for (const char *at = text; *at;) {
        size_t size = strspn(at, LETTERS) ? strspn(at, DIGITS) : 0;
        if (!size || (at[size] && (at[size] != ',' || !at[size + 1])))
            return RedisModule_CreateStringPrintf(
                NULL,
                "qa.worker-environment must be names of variables, separated by commas without blanks, got %.200s",
                text);
        at += size + (at[size] == ',');
    }
    return NULL;
}

static RedisModuleString *check_answer_keys(const char *text, size_t length) {
    if (!strcmp(text, "text") || !strcmp(text, "digest")) return NULL;
    return RedisModule_CreateStringPrintf(NULL, "qa.answer-keys must be text or digest, got %.64s", text);
}

static RedisModuleString *check_bulk_users(const char *text, size_t length) {
    if (strlen(text) == length) return NULL;
    return RedisModule_CreateStringPrintf(NULL, "qa.bulk-users has a zero byte after: %.128s", text);
}

static int loaded; /* 1: the configuration file has been read */

/* CONFIG SET must not turn this setting on, because a hostile primary may replicate a CONFIG SET. */
static RedisModuleString *check_adopt(const char *text, size_t length) {
    if (!strcmp(text, "no") || (!strcmp(text, "yes") && !loaded)) return NULL;
    if (loaded)
        return RedisModule_CreateStringPrintf(
            NULL, "qa.adopt-registrations can be turned on only in the configuration file; CONFIG SET accepts no");
    return RedisModule_CreateStringPrintf(NULL, "qa.adopt-registrations must be yes or no, got %.64s", text);
}

typedef struct TextSetting {
    const char *name, *preset;
    unsigned flags;
    char **value;
    RedisModuleString *(*check)(const char *text, size_t length);
    RedisModuleString *shown; /* the string that get_text returned; the server reads it later */
} TextSetting;

/* CONFIG SET cannot change the settings with REDISMODULE_CONFIG_IMMUTABLE. If it could, a client could run programs as
 * the server's user, make workers read or write any file, or pass the server's passwords to functions. */
static TextSetting TEXTS[] = {
    {"worker-command", "", REDISMODULE_CONFIG_IMMUTABLE, &config.worker_command, check_command, NULL},
    {"bus-key-file", "", REDISMODULE_CONFIG_IMMUTABLE, &config.bus_key_file, check_path, NULL},
    {"model-cache-dir", "", REDISMODULE_CONFIG_IMMUTABLE, &config.model_cache_dir, check_path, NULL},
    {"worker-environment", "", REDISMODULE_CONFIG_IMMUTABLE, &config.worker_environment, check_environment, NULL},
    {"answer-keys", "text", REDISMODULE_CONFIG_DEFAULT, &config.answer_keys, check_answer_keys, NULL},
    {"bulk-users", "", REDISMODULE_CONFIG_DEFAULT, &config.bulk_users, check_bulk_users, NULL},
    {"adopt-registrations", "no", REDISMODULE_CONFIG_DEFAULT, &config.adopt_registrations, check_adopt, NULL},
};
enum { TEXT_COUNT = sizeof TEXTS / sizeof *TEXTS };

static RedisModuleString *get_text(const char *name, void *data) { return ((const TextSetting *)data)->shown; }

static int set_text(const char *name, RedisModuleString *value, void *data, RedisModuleString **error) {
    TextSetting *setting = data;
    size_t length;
    const char *text = RedisModule_StringPtrLen(value, &length);
    if ((*error = setting->check(text, length))) return REDISMODULE_ERR;
    RedisModule_Free(*setting->value);
    *setting->value = RedisModule_Strdup(text);
    if (setting->shown) RedisModule_FreeString(NULL, setting->shown);
    setting->shown = RedisModule_CreateString(NULL, text, strlen(text));
    return REDISMODULE_OK;
}

int config_is_bulk_user(const char *name, size_t length) {
    for (const char *at = config.bulk_users; *(at += strspn(at, " ")); at += strcspn(at, " "))
        if (strcspn(at, " ") == length && !memcmp(at, name, length)) return 1;
    return 0;
}

char **config_split_command(const char *command, int *count) {
    size_t length = strlen(command);
    char **words = RedisModule_Calloc(1, (length + 2) * sizeof *words + length + 1);
    char *to = (char *)(words + length + 2);
    int quoted = 0, inside = 0;
    *count = 0;
    for (const char *at = command; *at; at++) {
        if (*at == ' ' && !quoted) {
            if (inside) *to++ = '\0';
            inside = 0;
            continue;
        }
        if (!inside) words[(*count)++] = to;
        inside = 1;
        if (*at == '"') quoted = !quoted;
        else if (*at == '\\' && at[1]) *to++ = *++at;
        else *to++ = *at;
    }
    if (*count && !quoted) return words;
    RedisModule_Free(words);
    if (quoted) *count = -1;
    return NULL;
}

/* ---- Numbers ---- */

static long long get_number(const char *name, void *data) { return *((const Setting *)data)->value; }

static int set_number(const char *name, long long value, void *data, RedisModuleString **error) {
    *((const Setting *)data)->value = value;
    return REDISMODULE_OK;
}

/* Returns the default of BACKENDSPATH. As in RedisAI, this is the folder `backends` next to the module. Empty: the path
 * of the module is unknown or too long. */
static char *default_backends_path(void) {
    static const char FOLDER[] = "/backends";
    Dl_info own;
    char path[PATH_MAX];
    if (!dladdr(&config, &own) || !own.dli_fname || !realpath(own.dli_fname, path)) return RedisModule_Strdup("");
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) + sizeof FOLDER > sizeof path) return RedisModule_Strdup("");
    memcpy(slash, FOLDER, sizeof FOLDER);
    return RedisModule_Strdup(path);
}

int config_on_load(RedisModuleCtx *ctx) {
    config.backends_path = default_backends_path();
    config.model_chunk_size = 511LL << 20;
    for (int i = 0; i < TEXT_COUNT; i++) {
        *TEXTS[i].value = RedisModule_Strdup(TEXTS[i].preset);
        if (RedisModule_RegisterStringConfig(ctx, TEXTS[i].name, TEXTS[i].preset, TEXTS[i].flags, get_text, set_text,
                                             NULL, &TEXTS[i]) != REDISMODULE_OK)
            return REDISMODULE_ERR;
    }
    for (int i = 0; i < SETTING_COUNT; i++) {
        const Setting *setting = &SETTINGS[i];
        *setting->value = setting->preset;
        if (RedisModule_RegisterNumericConfig(ctx, setting->name, setting->preset, REDISMODULE_CONFIG_DEFAULT,
                                              setting->min, setting->max, get_number, set_number, NULL,
                                              (void *)setting) != REDISMODULE_OK)
            return REDISMODULE_ERR;
    }
    int read = RedisModule_LoadConfigs(ctx);
    loaded = 1;
    return read;
}

int config_reply_pairs(RedisModuleCtx *ctx) {
    RedisModule_ReplyWithCString(ctx, "qa.worker-command");
    RedisModule_ReplyWithCString(ctx, config.worker_command);
    RedisModule_ReplyWithCString(ctx, "qa.answer-keys");
    RedisModule_ReplyWithCString(ctx, config.answer_keys);
    RedisModule_ReplyWithCString(ctx, "qa.model-cache-dir");
    RedisModule_ReplyWithCString(ctx, config.model_cache_dir);
    for (int i = 0; i < SETTING_COUNT; i++) {
        char name[64] = "qa.";
        strncat(name, SETTINGS[i].name, sizeof name - 4);
        RedisModule_ReplyWithCString(ctx, name);
        RedisModule_ReplyWithLongLong(ctx, *SETTINGS[i].value);
    }
    return 6 + 2 * SETTING_COUNT;
}

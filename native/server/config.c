/* Three kinds of settings: those of the server's configuration (SETTINGS), load arguments that take effect
 * (LOAD_ARGUMENTS), and those that the module only stores: LEGACY for set-up scripts of RedisGears and RedisAI, and the
 * user's own for functions. */
#include "server/config.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/caller.h"

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
    {"max-watched-questions", &config.max_watched, 10000, 0, 1000000},
    {"function-threads", &config.function_threads, 32, 1, 1024},
    {"background-timeout-ms", &config.background_timeout_ms, 0, 0, 2592000000LL},
};
enum { SETTING_COUNT = sizeof SETTINGS / sizeof *SETTINGS };

/* RedisAI's and RedisGears' load arguments that take effect. LEGACY stores their values as given. */
typedef struct LoadArgument {
    const char *name;
    long long *value;
    long long min, max;
} LoadArgument;

static const LoadArgument LOAD_ARGUMENTS[] = {
    {"THREADS_PER_QUEUE", &config.threads_per_queue, 1, 64},
    {"INTRA_OP_PARALLELISM", &config.intra_op_parallelism, 0, 4096},
    {"INTER_OP_PARALLELISM", &config.inter_op_parallelism, 0, 4096},
    {"MODEL_EXECUTION_TIMEOUT", &config.model_timeout_ms, 1000, 86400000},
    {"BACKEND_MEMORY_LIMIT", &config.backend_memory_mb, 0, 1 << 24},
    {"MODEL_CHUNK_SIZE", &config.model_chunk_size, MODEL_CHUNK_MIN, MODEL_CHUNK_MAX},
    {"ExecutionThreads", &config.function_threads, 1, 1024},
};
enum { LOAD_ARGUMENT_COUNT = sizeof LOAD_ARGUMENTS / sizeof *LOAD_ARGUMENTS };

/* RedisGears' and RedisAI's own settings. The module stores and shows them, so that their set-up scripts run unchanged;
 * storing changes nothing. Any other name is the user's own setting: functions read it with configGet(). */
typedef struct Legacy {
    const char *name;
    const char *preset;
} Legacy;

static const Legacy LEGACY[] = {
    {"MaxExecutions", "1000"},
    {"MaxExecutionsPerRegistration", "100"},
    {"ProfileExecutions", "0"},
    {"ExecutionThreads", "3"},
    {"ExecutionMaxIdleTime", "5000"},
    {"SendMsgRetries", "3"},
    {"PythonAttemptTraceback", "1"},
    {"PythonInstallReqMaxIdleTime", "30000"},
    {"CreateVenv", "0"},
    {"DownloadDeps", "0"},
    {"THREADS_PER_QUEUE", "1"},
    {"INTRA_OP_PARALLELISM", "0"},
    {"INTER_OP_PARALLELISM", "0"},
    {"MODEL_CHUNK_SIZE", "535822336"},
    {"MODEL_EXECUTION_TIMEOUT", "5000"},
    {"BACKEND_MEMORY_LIMIT", "0"},
    {"BACKENDSPATH", ""},
    {"TF", ""},
    {"TFLITE", ""},
    {"TORCH", ""},
    {"ONNX", ""},
    {"Plugin", ""},
    {"PythonInstallationDir", ""},
    {"OverridePythonAllocators", "1"},
};
enum { LEGACY_COUNT = sizeof LEGACY / sizeof *LEGACY, MAX_EXTRA = 1024, MAX_EXTRA_BYTES = 64 * 1024 };

static char *legacy_values[LEGACY_COUNT]; /* NULL: the preset */
static RedisModuleDict *extra;            /* name -> RedisModuleString */

static long long get_number(const char *name, void *data) {
    (void)name;
    return *((const Setting *)data)->value;
}

static int set_number(const char *name, long long value, void *data, RedisModuleString **error) {
    (void)name;
    (void)error;
    *((const Setting *)data)->value = value;
    return REDISMODULE_OK;
}

static void keep_text(char **kept, RedisModuleString **shown, const char *text) {
    RedisModule_Free(*kept);
    *kept = RedisModule_Strdup(text);
    if (*shown) RedisModule_FreeString(NULL, *shown);
    *shown = RedisModule_CreateString(NULL, text, strlen(text));
}

static RedisModuleString *shown_command; /* the server borrows what get_command returns */

static RedisModuleString *get_command(const char *name, void *data) {
    (void)name;
    (void)data;
    return shown_command;
}

static int set_command(const char *name, RedisModuleString *value, void *data, RedisModuleString **error) {
    (void)name;
    (void)data;
    int count;
    const char *text = RedisModule_StringPtrLen(value, NULL);
    char **words = config_split_command(text, &count);
    if (count < 0) {
        *error = RedisModule_CreateStringPrintf(NULL, "qa.worker-command has an unclosed double quote: %s", text);
        return REDISMODULE_ERR;
    }
    RedisModule_Free(words);
    keep_text(&config.worker_command, &shown_command, text);
    return REDISMODULE_OK;
}

/* A path, which may be anything: what cannot be used is reported where it is used. */
typedef struct Path {
    char **kept;
    RedisModuleString *shown;
} Path;

static Path key_file = {&config.bus_key_file, NULL};
static Path model_cache = {&config.model_cache_dir, NULL};

static RedisModuleString *get_path(const char *name, void *data) {
    (void)name;
    return ((const Path *)data)->shown;
}

static int set_path(const char *name, RedisModuleString *value, void *data, RedisModuleString **error) {
    Path *path = data;
    (void)name;
    (void)error;
    keep_text(path->kept, &path->shown, RedisModule_StringPtrLen(value, NULL));
    return REDISMODULE_OK;
}

static RedisModuleString *shown_environment;

static RedisModuleString *get_environment(const char *name, void *data) {
    (void)name;
    (void)data;
    return shown_environment;
}

static int set_environment(const char *name, RedisModuleString *value, void *data, RedisModuleString **error) {
    static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    static const char DIGITS[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    (void)name;
    (void)data;
    const char *text = RedisModule_StringPtrLen(value, NULL);
    for (const char *at = text; *at;) {
        size_t length = strspn(at, LETTERS) ? strspn(at, DIGITS) : 0;
        if (!length || (at[length] && (at[length] != ',' || !at[length + 1]))) {
            *error = RedisModule_CreateStringPrintf(
                NULL, "qa.worker-environment must be names of variables, divided by commas without blanks, got %.200s",
                text);
            return REDISMODULE_ERR;
        }
        at += length + (at[length] == ',');
    }
    keep_text(&config.worker_environment, &shown_environment, text);
    return REDISMODULE_OK;
}

static RedisModuleString *shown_answer_keys;

static RedisModuleString *get_answer_keys(const char *name, void *data) {
    (void)name;
    (void)data;
    return shown_answer_keys;
}

static int set_answer_keys(const char *name, RedisModuleString *value, void *data, RedisModuleString **error) {
    (void)name;
    (void)data;
    const char *text = RedisModule_StringPtrLen(value, NULL);
    if (strcmp(text, "text") && strcmp(text, "digest")) {
        *error = RedisModule_CreateStringPrintf(NULL, "qa.answer-keys must be text or digest, got %.64s", text);
        return REDISMODULE_ERR;
    }
    keep_text(&config.answer_keys, &shown_answer_keys, text);
    return REDISMODULE_OK;
}

static RedisModuleString *shown_bulk_users;

static RedisModuleString *get_bulk_users(const char *name, void *data) {
    (void)name;
    (void)data;
    return shown_bulk_users;
}

static int set_bulk_users(const char *name, RedisModuleString *value, void *data, RedisModuleString **error) {
    (void)name;
    (void)data;
    size_t length;
    const char *text = RedisModule_StringPtrLen(value, &length);
    if (strlen(text) != length) {
        *error = RedisModule_CreateStringPrintf(NULL, "qa.bulk-users has a zero byte after: %.128s", text);
        return REDISMODULE_ERR;
    }
    keep_text(&config.bulk_users, &shown_bulk_users, text);
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

static int find_legacy(const char *name) {
    for (int i = 0; i < LEGACY_COUNT; i++)
        if (!strcasecmp(LEGACY[i].name, name)) return i;
    return -1;
}

/* What became of a setting. */
typedef enum { STORED_LEGACY, STORED_EXTRA, REFUSED } Stored;

static Stored store(RedisModuleString *name, RedisModuleString *value) {
    size_t name_length, value_length;
    const char *text = RedisModule_StringPtrLen(name, &name_length);
    const char *value_text = RedisModule_StringPtrLen(value, &value_length);
    int legacy = find_legacy(text);
    if (value_length > MAX_EXTRA_BYTES || name_length > MAX_EXTRA_BYTES) return REFUSED;
    if (legacy >= 0) {
        RedisModule_Free(legacy_values[legacy]);
        legacy_values[legacy] = RedisModule_Strdup(value_text);
        return STORED_LEGACY;
    }
    RedisModuleString *old = RedisModule_DictGetC(extra, (void *)text, name_length, NULL);
    if (!old && RedisModule_DictSize(extra) >= MAX_EXTRA) return REFUSED;
    RedisModule_DictReplaceC(extra, (void *)text, name_length, RedisModule_CreateStringFromString(NULL, value));
    if (old) RedisModule_FreeString(NULL, old);
    return STORED_EXTRA;
}

/* 0: the module knows the argument, but its value is not valid; this function has logged that. */
static int apply_load_argument(RedisModuleCtx *ctx, const char *name, RedisModuleString *value) {
    if (!strcasecmp(name, "BACKENDSPATH")) {
        RedisModule_Free(config.backends_path);
        config.backends_path = RedisModule_Strdup(RedisModule_StringPtrLen(value, NULL));
    }
    for (int i = 0; i < LOAD_ARGUMENT_COUNT; i++) {
        const LoadArgument *known = &LOAD_ARGUMENTS[i];
        if (strcasecmp(known->name, name)) continue;
        long long number;
        if (RedisModule_StringToLongLong(value, &number) == REDISMODULE_OK && number >= known->min &&
            number <= known->max) {
            *known->value = number;
            return 1;
        }
        RedisModule_Log(ctx, "warning", "load argument %s must be an integer from %lld to %lld, got %s", known->name,
                        known->min, known->max, RedisModule_StringPtrLen(value, NULL));
        return 0;
    }
    return 1;
}

/* RedisAI's default: the folder `backends` beside the module. */
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

int config_on_load(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    extra = RedisModule_CreateDict(NULL);
    config.worker_command = RedisModule_Strdup("");
    config.bus_key_file = RedisModule_Strdup("");
    config.model_cache_dir = RedisModule_Strdup("");
    config.worker_environment = RedisModule_Strdup("");
    config.answer_keys = RedisModule_Strdup("text");
    config.bulk_users = RedisModule_Strdup("");
    config.backends_path = default_backends_path();
    config.model_chunk_size = 511LL << 20;
    /* The first four are immutable: a client that could change them could run programs as the server's user, make
     * workers read or write files where it likes, or give functions the server's passwords. */
    if (RedisModule_RegisterStringConfig(ctx, "worker-command", "", REDISMODULE_CONFIG_IMMUTABLE, get_command,
                                         set_command, NULL, NULL) != REDISMODULE_OK ||
        RedisModule_RegisterStringConfig(ctx, "bus-key-file", "", REDISMODULE_CONFIG_IMMUTABLE, get_path, set_path,
                                         NULL, &key_file) != REDISMODULE_OK ||
        RedisModule_RegisterStringConfig(ctx, "model-cache-dir", "", REDISMODULE_CONFIG_IMMUTABLE, get_path, set_path,
                                         NULL, &model_cache) != REDISMODULE_OK ||
        RedisModule_RegisterStringConfig(ctx, "worker-environment", "", REDISMODULE_CONFIG_IMMUTABLE, get_environment,
                                         set_environment, NULL, NULL) != REDISMODULE_OK ||
        RedisModule_RegisterStringConfig(ctx, "answer-keys", "text", REDISMODULE_CONFIG_DEFAULT, get_answer_keys,
                                         set_answer_keys, NULL, NULL) != REDISMODULE_OK ||
        RedisModule_RegisterStringConfig(ctx, "bulk-users", "", REDISMODULE_CONFIG_DEFAULT, get_bulk_users,
                                         set_bulk_users, NULL, NULL) != REDISMODULE_OK)
        return REDISMODULE_ERR;
    for (int i = 0; i < SETTING_COUNT; i++) {
        const Setting *setting = &SETTINGS[i];
        *setting->value = setting->preset;
        if (RedisModule_RegisterNumericConfig(ctx, setting->name, setting->preset, REDISMODULE_CONFIG_DEFAULT,
                                              setting->min, setting->max, get_number, set_number, NULL,
                                              (void *)setting) != REDISMODULE_OK)
            return REDISMODULE_ERR;
    }
    if (RedisModule_LoadConfigs(ctx) != REDISMODULE_OK) return REDISMODULE_ERR;
    if (argc % 2) {
        RedisModule_Log(ctx, "warning", "load arguments must be name, value pairs, got %d words", argc);
        return REDISMODULE_ERR;
    }
    for (int i = 0; i < argc; i += 2) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        if (!apply_load_argument(ctx, name, argv[i + 1])) return REDISMODULE_ERR;
        Stored stored = store(argv[i], argv[i + 1]);
        if (stored == REFUSED) {
            RedisModule_Log(ctx, "warning", "load argument %s is too long, or there are too many", name);
            return REDISMODULE_ERR;
        }
        if (stored == STORED_EXTRA)
            RedisModule_Log(ctx, "warning", "unknown load argument %s: stored for functions", name);
    }
    return REDISMODULE_OK;
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

static void reply_value(RedisModuleCtx *ctx, const char *value) {
    char *end;
    long long number = strtoll(value, &end, 10);
    if (*value && !*end) RedisModule_ReplyWithLongLong(ctx, number);
    else RedisModule_ReplyWithCString(ctx, value);
}

int RG_CONFIGGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    RedisModule_ReplyWithArray(ctx, argc - 1);
    for (int i = 1; i < argc; i++) {
        size_t length;
        const char *name = RedisModule_StringPtrLen(argv[i], &length);
        int legacy = find_legacy(name);
        RedisModuleString *value = RedisModule_DictGetC(extra, (void *)name, length, NULL);
        if (legacy >= 0) {
            reply_value(ctx, legacy_values[legacy] ? legacy_values[legacy] : LEGACY[legacy].preset);
        } else if (value) {
            RedisModule_ReplyWithString(ctx, value);
        } else {
            RedisModuleString *text = RedisModule_CreateStringPrintf(ctx, "(error) Unsupported config parameter: %s",
                                                                     name);
            RedisModule_ReplyWithString(ctx, text);
            RedisModule_FreeString(ctx, text);
        }
    }
    return REDISMODULE_OK;
}

/* A parameter whose preset is a number takes numbers only. */
static int fits_preset(int legacy, RedisModuleString *value) {
    long long number;
    if (legacy < 0 || !LEGACY[legacy].preset[0]) return 1;
    return RedisModule_StringToLongLong(value, &number) == REDISMODULE_OK && number >= 0;
}

int RG_CONFIGSET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 3 || argc % 2 == 0) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.configset")) return REDISMODULE_OK;
    RedisModule_ReplyWithArray(ctx, (argc - 1) / 2);
    for (int i = 1; i < argc; i += 2) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        if (!fits_preset(find_legacy(name), argv[i + 1])) {
            RedisModuleString *text = RedisModule_CreateStringPrintf(
                ctx, "(error) %s must be a whole number that is not negative, got %.64s", name,
                RedisModule_StringPtrLen(argv[i + 1], NULL));
            RedisModule_ReplyWithString(ctx, text);
            RedisModule_FreeString(ctx, text);
            continue;
        }
        switch (store(argv[i], argv[i + 1])) {
        case STORED_LEGACY: RedisModule_ReplyWithSimpleString(ctx, "OK"); break;
        case STORED_EXTRA:
            RedisModule_ReplyWithSimpleString(ctx, "OK - value was saved in extra config dictionary");
            break;
        case REFUSED:
            RedisModule_ReplyWithCString(ctx, "(error) too long (limit 64 KiB) or too many parameters (limit 1024)");
            break;
        }
    }
    return REDISMODULE_OK;
}

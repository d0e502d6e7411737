/* LEGACY has the load arguments of RedisGears and RedisAI, so that set-up scripts for them run unchanged. All other
 * load arguments are the user's own settings for functions, which the module only stores. */
#include "scripts/gears/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/caller.h"
#include "server/commands.h"
#include "server/config.h"

/* A setting of RedisGears or RedisAI. RG.CONFIGSET stores it, and RG.CONFIGGET shows it. The worker applies some of
 * these settings (`GearsSettings`). Names outside this table are the user's own settings, which functions read with
 * configGet(). */
typedef struct Legacy {
    const char *name;
    const char *preset; /* "" if `value` has the preset, or if the setting is a text */
    long long *value;   /* the number in `config` that the load argument sets; NULL: it sets no number */
    long long min, max; /* of `value` */
} Legacy;

static const Legacy LEGACY[] = {
    {"MaxExecutions", "1000", NULL, 0, 0},
    {"MaxExecutionsPerRegistration", "100", NULL, 0, 0},
    {"ProfileExecutions", "0", NULL, 0, 0},
    {"ExecutionThreads", "", &config.function_threads, 1, 1024},
    {"ExecutionMaxIdleTime", "5000", NULL, 0, 0},
    {"SendMsgRetries", "3", NULL, 0, 0},
    {"PythonAttemptTraceback", "1", NULL, 0, 0},
    {"PythonInstallReqMaxIdleTime", "30000", NULL, 0, 0},
    {"CreateVenv", "0", NULL, 0, 0},
    {"DownloadDeps", "0", NULL, 0, 0},
    {"THREADS_PER_QUEUE", "", &config.threads_per_queue, 1, 64},
    {"INTRA_OP_PARALLELISM", "", &config.intra_op_parallelism, 0, 4096},
    {"INTER_OP_PARALLELISM", "", &config.inter_op_parallelism, 0, 4096},
    {"MODEL_CHUNK_SIZE", "", &config.model_chunk_size, MODEL_CHUNK_MIN, MODEL_CHUNK_MAX},
    {"MODEL_EXECUTION_TIMEOUT", "", &config.model_timeout_ms, 1000, 86400000},
    {"BACKEND_MEMORY_LIMIT", "", &config.backend_memory_mb, 0, 1 << 24},
    {"BACKENDSPATH", "", NULL, 0, 0},
    {"TF", "", NULL, 0, 0},
    {"TFLITE", "", NULL, 0, 0},
    {"TORCH", "", NULL, 0, 0},
    {"ONNX", "", NULL, 0, 0},
    {"Plugin", "", NULL, 0, 0},
    {"PythonInstallationDir", "", NULL, 0, 0},
    {"OverridePythonAllocators", "1", NULL, 0, 0},
};
enum { LEGACY_COUNT = sizeof LEGACY / sizeof *LEGACY, MAX_EXTRA = 1024, MAX_EXTRA_BYTES = 64 * 1024 };

static char *legacy_values[LEGACY_COUNT]; /* NULL: `value` or the preset applies */
static RedisModuleDict *extra;            /* name -> RedisModuleString */

static int find_legacy(const char *name) {
    for (int i = 0; i < LEGACY_COUNT; i++)
        if (!strcasecmp(LEGACY[i].name, name)) return i;
    return -1;
}

/* The result of storing a setting: stored in `legacy_values`, stored in `extra`, or refused. */
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
    RedisModuleString *old = RedisModule_DictGet(extra, name, NULL);
    if (!old && RedisModule_DictSize(extra) >= MAX_EXTRA) return REFUSED;
    RedisModule_DictReplace(extra, name, RedisModule_CreateStringFromString(NULL, value));
    if (old) RedisModule_FreeString(NULL, old);
    return STORED_EXTRA;
}

/* Applies a load argument that changes the module. `row` is its row in LEGACY; -1: the argument is not in LEGACY.
 * Returns 0 if the value is invalid; then the function has logged the limits. */
static int apply_load_argument(RedisModuleCtx *ctx, const char *name, int row, RedisModuleString *value) {
    if (!strcasecmp(name, "BACKENDSPATH")) {
        RedisModule_Free(config.backends_path);
        config.backends_path = RedisModule_Strdup(RedisModule_StringPtrLen(value, NULL));
    }
    if (row < 0 || !LEGACY[row].value) return 1;
    const Legacy *known = &LEGACY[row];
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

int settings_load_arguments(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    extra = RedisModule_CreateDict(NULL);
    if (argc % 2) {
        RedisModule_Log(ctx, "warning", "load arguments must be name, value pairs, got %d words", argc);
        return REDISMODULE_ERR;
    }
    for (int i = 0; i < argc; i += 2) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        int row = find_legacy(name);
        if (!apply_load_argument(ctx, name, row, argv[i + 1])) return REDISMODULE_ERR;
        if (row >= 0 && LEGACY[row].value) continue;
        Stored stored = store(argv[i], argv[i + 1]);
        if (stored == REFUSED) {
            RedisModule_Log(ctx, "warning", "load argument %s is too long, or there are too many load arguments", name);
            return REDISMODULE_ERR;
        }
        if (stored == STORED_EXTRA)
            RedisModule_Log(ctx, "warning", "stored the unknown load argument %s for functions", name);
    }
    return REDISMODULE_OK;
}

/* ---- RG.CONFIGGET, RG.CONFIGSET ---- */

static void reply_value(RedisModuleCtx *ctx, const char *value) {
    char *end;
    long long number = strtoll(value, &end, 10);
    if (*value && !*end) RedisModule_ReplyWithLongLong(ctx, number);
    else RedisModule_ReplyWithCString(ctx, value);
}

static void reply_legacy(RedisModuleCtx *ctx, int row) {
    if (legacy_values[row]) reply_value(ctx, legacy_values[row]);
    else if (LEGACY[row].value) RedisModule_ReplyWithLongLong(ctx, *LEGACY[row].value);
    else reply_value(ctx, LEGACY[row].preset);
}

static int RG_CONFIGGET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return RedisModule_WrongArity(ctx);
    char text[160];
    RedisModule_ReplyWithArray(ctx, argc - 1);
    for (int i = 1; i < argc; i++) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        int legacy = find_legacy(name);
        RedisModuleString *value = RedisModule_DictGet(extra, argv[i], NULL);
        if (legacy >= 0) {
            reply_legacy(ctx, legacy);
        } else if (value) {
            RedisModule_ReplyWithString(ctx, value);
        } else {
            snprintf(text, sizeof text, "(error) Unsupported config parameter: %.100s", name);
            RedisModule_ReplyWithCString(ctx, text);
        }
    }
    return REDISMODULE_OK;
}

/* 1: the setting accepts the value. `legacy` is the row of the setting in LEGACY; -1: the setting is not in LEGACY. A
 * setting of LEGACY with a number accepts only integers that are not negative. All other settings accept any value. */
static int fits_preset(int legacy, RedisModuleString *value) {
    long long number;
    if (legacy < 0 || (!LEGACY[legacy].value && !LEGACY[legacy].preset[0])) return 1;
    return RedisModule_StringToLongLong(value, &number) == REDISMODULE_OK && number >= 0;
}

static int RG_CONFIGSET_RedisCommand(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 3 || argc % 2 == 0) return RedisModule_WrongArity(ctx);
    if (!caller_require_admin(ctx, "rg.configset")) return REDISMODULE_OK;
    char text[256];
    RedisModule_ReplyWithArray(ctx, (argc - 1) / 2);
    for (int i = 1; i < argc; i += 2) {
        const char *name = RedisModule_StringPtrLen(argv[i], NULL);
        if (!fits_preset(find_legacy(name), argv[i + 1])) {
            snprintf(text, sizeof text, "(error) %.100s must be a whole number that is not negative, got %.64s", name,
                     RedisModule_StringPtrLen(argv[i + 1], NULL));
            RedisModule_ReplyWithCString(ctx, text);
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

int settings_on_load(RedisModuleCtx *ctx) {
    static const CommandSpec COMMANDS[] = {
        {"rg.configget", RG_CONFIGGET_RedisCommand, "readonly fast", 0, 0, 0, "read fast"},
        {"rg.configset", RG_CONFIGSET_RedisCommand, "admin", 0, 0, 0, "admin dangerous slow"},
    };
    return commands_register(ctx, COMMANDS, sizeof COMMANDS / sizeof *COMMANDS);
}

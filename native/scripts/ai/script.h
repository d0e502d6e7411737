/* Scripts: the values of the AI_SCRIPT data type. A script is a TorchScript source that the worker compiles. runnable.h
 * describes the lifetime of scripts and their registry. */
#pragma once

#include "models/runnable.h"
#include "server/module_api.h"
#include "server/texts.h"

#define SCRIPT_MAX_BYTES (16 << 20)

typedef struct Script {
    Runnable run;
    Text source;
    Names entry_points; /* empty: AI.SCRIPTSET stored the script, and runs pass tensors by position */
} Script;

extern const RunnableClass script_class;

/* Returns a script with a new `ref` (runnable.h), a reference count of one and an empty source. */
Script *script_new(const char *device);

/* ---- Scripts behind keys ---- */

/* Sets *script to the script of the key. It is valid until the current command ends. Returns NULL or an error line. */
const char *script_read(RedisModuleCtx *ctx, RedisModuleString *key, Script **script);
/* Stores the script in the key, which takes over the caller's reference. */
void script_store(RedisModuleCtx *ctx, RedisModuleString *key, Script *script);
/* Replicates the script as AI.SCRIPTSTORE. */
void script_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Script *script);
RedisModuleType *script_key_type(void);
/* Creates the data type. */
int script_type_create(RedisModuleCtx *ctx);

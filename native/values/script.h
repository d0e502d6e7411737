/* Scripts: the value behind AI_SCRIPT keys, a TorchScript source. Lifetime and registry: runnable.h. Compiling is the worker's. */
#ifndef QA_SCRIPT_H
#define QA_SCRIPT_H

#include "server/module_api.h"
#include "values/runnable.h"
#include "server/texts.h"

#define SCRIPT_MAX_BYTES (16 << 20)

typedef struct Script {
    Runnable run;
    Text source;
    Names entry_points; /* none: its functions are called the old way, with tensors in their places */
} Script;

extern const RunnableClass script_class;

/* With a fresh ref and one reference, and an empty source. */
Script *script_new(const char *device);

/* ---- script_type.c: the data type ---- */

/* The script at the key, borrowed until the current command ends. Returns NULL or an error line. */
const char *script_read(RedisModuleCtx *ctx, RedisModuleString *key, Script **script);
/* Stores the script: the key takes over the caller's reference. */
void script_store(RedisModuleCtx *ctx, RedisModuleString *key, Script *script);
/* Replicates the script as AI.SCRIPTSTORE. */
void script_replicate(RedisModuleCtx *ctx, RedisModuleString *key, const Script *script);
RedisModuleType *script_key_type(void);
int script_type_create(RedisModuleCtx *ctx);

/* cmd_script.c: creates the type, registers the commands (cmd_scriptrun.c: those that run). */
int script_on_load(RedisModuleCtx *ctx);
int script_run_on_load(RedisModuleCtx *ctx);

#endif

/* Scripts: the value behind AI_SCRIPT keys, a TorchScript source that the worker compiles. Lifetime and registry:
 * runnable.h. */
#ifndef QA_SCRIPT_H
#define QA_SCRIPT_H

#include "server/module_api.h"
#include "server/texts.h"
#include "values/runnable.h"

#define SCRIPT_MAX_BYTES (16 << 20)

typedef struct Script {
    Runnable run;
    Text source;
    Names entry_points; /* none: AI.SCRIPTSET made it, and runs pass tensors by position */
} Script;

extern const RunnableClass script_class;

/* A script with a fresh ref, one reference and an empty source. */
Script *script_new(const char *device);

#endif

/* Scripts: the value behind AI_SCRIPT keys, a TorchScript source. Lifetime and registry: runnable.h. Compiling is the
 * worker's. */
#ifndef QA_SCRIPT_H
#define QA_SCRIPT_H

#include "server/module_api.h"
#include "server/texts.h"
#include "values/runnable.h"

#define SCRIPT_MAX_BYTES (16 << 20)

typedef struct Script {
    Runnable run;
    Text source;
    Names entry_points; /* none: its functions are called the old way, with tensors in their places */
} Script;

extern const RunnableClass script_class;

/* With a fresh ref and one reference, and an empty source. */
Script *script_new(const char *device);

#endif

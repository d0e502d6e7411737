/* Runs the Lua scripts of qa-cluster with the rights of the module: for commands that have checked what their caller
 * may do. The scripts are those of qa_cluster/scripts, compiled in. */
#ifndef QA_OWN_SCRIPTS_H
#define QA_OWN_SCRIPTS_H

#include "server/module_api.h"

typedef enum OwnScript {
    SCRIPT_PUT_DOCUMENT,
    SCRIPT_DELETE_DOCUMENT,
    SCRIPT_SET_METADATA,
    SCRIPT_STORE_WHOLE_ANSWER,
    SCRIPT_DROP_ANSWERS,
    SCRIPT_FORGET_COLLECTION,
    OWN_SCRIPTS,
} OwnScript;

/* Replies to the client with the reply of the script. The arguments are the keys of the script, then its arguments. */
int own_script_run(RedisModuleCtx *ctx, OwnScript script, RedisModuleString **keys, size_t n_keys,
                   RedisModuleString **argv, size_t argc);

#endif

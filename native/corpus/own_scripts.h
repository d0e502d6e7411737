/* Runs the Lua scripts of qa-cluster with the rights of the module, not of the client. So the command that runs a
 * script must first check the rights of its client. The scripts in qa_cluster/scripts are compiled into the module. */
#pragma once

#include "server/module_api.h"

typedef enum OwnScript {
    SCRIPT_PUT_DOCUMENT,
    SCRIPT_DELETE_DOCUMENT,
    SCRIPT_SET_METADATA,
    SCRIPT_EMBED_DOCUMENT,
    SCRIPT_STORE_WHOLE_ANSWER,
    SCRIPT_DROP_ANSWERS,
    SCRIPT_FORGET_COLLECTION,
    OWN_SCRIPTS,
} OwnScript;

/* Runs a script and replies to the client: with the script's reply, or with an error if the server refuses to run the
 * script. Returns REDISMODULE_OK in both cases. */
int own_script_run(RedisModuleCtx *ctx, OwnScript script, RedisModuleString **keys, size_t n_keys,
                   RedisModuleString **argv, size_t argc);

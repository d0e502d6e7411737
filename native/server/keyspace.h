/* Reads and writes keys with values of the module's types.
 *
 * The module switches off implicit modification signals (server.c). So opening a key for writing does not signal a
 * change, and these functions signal each change explicitly. */
#ifndef QA_KEYSPACE_H
#define QA_KEYSPACE_H

#include "server/module_api.h"

typedef enum { KEY_EMPTY, KEY_FOUND, KEY_WRONGTYPE } KeyState;

/* Gives the value of the key, borrowed until the current command ends. Like every read, it signals a miss if the key
 * does not exist. */
KeyState keyspace_read(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* Like keyspace_read, but signals no miss. */
KeyState keyspace_peek(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* Sets the key to `value`, without a TTL, and signals `event`. The caller replicates. */
void keyspace_store(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void *value,
                    const char *event);

/* Signals that the caller has changed the value in place. The caller replicates. */
void keyspace_changed(RedisModuleCtx *ctx, RedisModuleString *name, const char *event);

/* Deletes the key and signals the deletion. The caller replicates. */
void keyspace_delete(RedisModuleCtx *ctx, RedisModuleString *name);

/* NULL if each key is missing or has a value of `type`; else an error line. */
const char *keyspace_check_types(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

/* For writes after the client's command has returned: repeats the checks that the server made before the command. NULL
 * if this server may still write all keys in the selected database, and if keyspace_check_types finds no error.
 * Otherwise an error line. */
const char *keyspace_may_write(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

#endif

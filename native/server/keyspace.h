/* Reads and writes keys with values of the module's types.
 *
 * The server does not signal a change when the module opens a key for writing, because server.c disables these implicit
 * signals. So these functions signal each change explicitly. */
#pragma once

#include "server/module_api.h"

typedef enum { KEY_EMPTY, KEY_FOUND, KEY_WRONGTYPE } KeyState;

/* Sets *value to the value of the key, or to NULL if the result is not KEY_FOUND. The value is valid until the current
 * command ends. For a missing key, the server sends a keymiss event. */
KeyState keyspace_read(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* Like keyspace_read, but without a keymiss event. */
KeyState keyspace_peek(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* Sets the key to `value`, without a TTL, and signals `event`. The caller must replicate the change. */
void keyspace_store(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void *value,
                    const char *event);

/* Signals that the caller has changed the value in place. The caller must replicate the change. */
void keyspace_changed(RedisModuleCtx *ctx, RedisModuleString *name, const char *event);

/* Deletes the key and signals the deletion. The caller must replicate it. */
void keyspace_delete(RedisModuleCtx *ctx, RedisModuleString *name);

/* Returns NULL if each key is missing or has a value of `type`, or else an error line. */
const char *keyspace_check_types(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

/* For writes after the client's command has returned: repeats the checks that the server made before the command.
 * Returns NULL if this server may still write all keys in the selected database, and if keyspace_check_types finds no
 * error. Otherwise returns an error line. */
const char *keyspace_may_write(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

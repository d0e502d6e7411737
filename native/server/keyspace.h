/* Keys that hold values of our types.
 *
 * The module switches off implicit modification signals (server.c), so opening a key for writing only to look at it is
 * harmless, and storing says explicitly that the key has changed. */
#ifndef QA_KEYSPACE_H
#define QA_KEYSPACE_H

#include "server/module_api.h"

typedef enum { KEY_EMPTY, KEY_FOUND, KEY_WRONGTYPE } KeyState;

/* The value at `name`, borrowed until the current command ends. A read like any other: an empty key is announced as
 * missed. */
KeyState keyspace_read(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* As keyspace_read, but no miss is announced. */
KeyState keyspace_peek(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* Puts `value` there, whatever was there before, without TTL, and announces `event`. Replicating is the caller's. */
void keyspace_store(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void *value,
                    const char *event);

/* The value at `name` was changed where it is. Replicating is the caller's. */
void keyspace_changed(RedisModuleCtx *ctx, RedisModuleString *name, const char *event);

/* Deletes the key and announces it. Replicating is the caller's. */
void keyspace_delete(RedisModuleCtx *ctx, RedisModuleString *name);

/* NULL when each key is empty or holds a value of `type`; else an error line. */
const char *keyspace_check_types(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

/* For writing after the client's command has returned: checks again what the server checked for the command. NULL when
 * this server may still write all keys in the selected database and keyspace_check_types finds no fault. */
const char *keyspace_may_write(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

#endif

/* Keys that hold values of our types.
 *
 * The module switches off implicit modification signals (server.c). So it can open a key for writing only to look at
 * it, and signals explicitly that a key has changed. */
#ifndef QA_KEYSPACE_H
#define QA_KEYSPACE_H

#include "server/module_api.h"

typedef enum { KEY_EMPTY, KEY_FOUND, KEY_WRONGTYPE } KeyState;

/* The value at `name`, borrowed until the current command ends. Like any other read, it announces a miss of an empty
 * key. */
KeyState keyspace_read(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* As keyspace_read, but announces no miss. */
KeyState keyspace_peek(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void **value);

/* Replaces what `name` holds by `value`, without TTL, and announces `event`. The caller replicates. */
void keyspace_store(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void *value,
                    const char *event);

/* Announces that the caller has changed the value at `name` in place. The caller replicates. */
void keyspace_changed(RedisModuleCtx *ctx, RedisModuleString *name, const char *event);

/* Deletes the key and announces it. The caller replicates. */
void keyspace_delete(RedisModuleCtx *ctx, RedisModuleString *name);

/* NULL when each key is empty or holds a value of `type`; else an error line. */
const char *keyspace_check_types(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

/* For writing after the client's command has returned: repeats the server's checks of the command. NULL when this
 * server may still write all keys in the selected database and keyspace_check_types finds no fault. */
const char *keyspace_may_write(RedisModuleCtx *ctx, RedisModuleString **names, int n, RedisModuleType *type);

#endif

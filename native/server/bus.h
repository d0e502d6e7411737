/* Messages between the modules of a cluster's servers, over the cluster bus, signed with a key that all of them have.
 */
#ifndef QA_BUS_H
#define QA_BUS_H

#include "server/module_api.h"

/* Kinds of messages: one from worker to worker, and a change of registrations. */
enum { CLUSTER_MESSAGE = 1, CLUSTER_ADMIN = 2 };

typedef struct BusInfo {
    const char *key; /* where the key is from: "file", "password" or "none" */
    unsigned long long sent, received, refused;
} BusInfo;

/* Gets the messages of a kind that another server of the cluster has signed; `sender` is its node id, not terminated.
 */
typedef void (*BusReceiver)(RedisModuleCtx *ctx, const char *sender, const char *payload, size_t length);

void bus_receive(RedisModuleCtx *ctx, uint8_t kind, BusReceiver receiver);

/* Sends to the node with this id, or to all others with NULL. NULL when it was handed to the bus, which acknowledges
 * nothing and may lose it, else an error line, valid until the next call. */
const char *bus_send(RedisModuleCtx *ctx, const char *node, uint8_t kind, const char *payload, size_t length);

BusInfo bus_info(void);

enum { BUS_SECRET_BYTES = 32 };

/* A secret that all servers with the same key make, and from which nobody learns the key; 0: there is no key. */
int bus_secret(RedisModuleCtx *ctx, const char *purpose, uint8_t *secret);

#endif

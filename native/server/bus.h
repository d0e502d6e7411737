/* Signed messages between the modules of a cluster's servers, over the cluster bus. */
#pragma once

#include "server/module_api.h"

/* The kinds of messages: from worker to worker, and a change of registrations. */
enum { CLUSTER_MESSAGE = 1, CLUSTER_ADMIN = 2 };

typedef struct BusInfo {
    const char *key; /* the source of the key (bus_keys.h) */
    unsigned long long sent, received, refused;
} BusInfo;

/* Receives a message that another server of the cluster has signed. `sender` is a node id without a NUL. */
typedef void (*BusReceiver)(RedisModuleCtx *ctx, const char *sender, const char *payload, size_t length);

void bus_receive(RedisModuleCtx *ctx, uint8_t kind, BusReceiver receiver);

/* Sends a message to the node with this id, or to all other nodes if `node` is NULL. Returns NULL if the bus has
 * accepted the message. The bus may still lose the message, and does not acknowledge it. Otherwise returns an error
 * line, which is valid until the next call. */
const char *bus_send(RedisModuleCtx *ctx, const char *node, uint8_t kind, const char *payload, size_t length);

BusInfo bus_info(void);

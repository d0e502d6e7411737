/* The bus delivers messages of every node that has joined the cluster (CLUSTER MEET), and a node can join without a
 * password. Messages between workers contain code. So the module accepts only messages that are signed with a key of
 * the cluster (bus_keys.c). Without a key, servers exchange no messages.
 *
 * A MESSAGE is the mark (MARK), the kind (u8), the sequence (u64, little-endian), the tag (32 bytes) and the payload.
 * The tag is a keyed BLAKE2b-256 over all other fields, the id of the sender and the id of the receiver (zeros: all
 * receivers).
 *
 * REPLAY. The sequence is the sender's clock in microseconds, and grows with every message. A receiver accepts a
 * message only if its sequence is above the last sequence of this sender and at most WINDOW_US away from the receiver's
 * clock. The bus delivers the messages of a sender in order. */
#include "server/bus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/blake2b.h"
#include "server/bus_keys.h"

#define MARK "qab1"
#define WINDOW_US (120LL * 1000000)
enum {
    TAG_BYTES = 32,
    MAX_SENDERS = 4096,
    MAX_KINDS = 8,
    ID = REDISMODULE_NODE_ID_LEN,
    NODE_IP = 46 + 1, /* the server writes 46 bytes */
    SEQUENCE_AT = sizeof MARK,
    TAG_AT = SEQUENCE_AT + 8,
    PAYLOAD_AT = TAG_AT + TAG_BYTES,
};

typedef struct Sender {
    char id[ID];
    uint64_t sequence;
} Sender;

static Sender *senders;
static size_t sender_count;
static BusReceiver receivers[MAX_KINDS];
static BusInfo counts;

/* ---- Signing ---- */

static void put_u64(uint8_t *at, uint64_t value) {
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_u64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static void sign(uint8_t *tag, const uint8_t *key, const uint8_t *message, size_t length, const char *sender,
                 const char *receiver) {
    static const char ALL[ID];
    Blake2b hash;
    blake2b_begin(&hash, TAG_BYTES, key, BUS_KEY_BYTES);
    blake2b_add(&hash, message, TAG_AT);
    blake2b_add(&hash, sender, ID);
    blake2b_add(&hash, receiver ? receiver : ALL, ID);
    blake2b_add(&hash, message + PAYLOAD_AT, length - PAYLOAD_AT);
    blake2b_end(&hash, tag);
}

static uint64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t next_sequence(void) {
    static uint64_t last;
    uint64_t now = microseconds();
    last = now > last ? now : last + 1;
    return last;
}

/* Returns an error line if the node is unknown or down. NULL: the node is known and not down. A known node may have no
 * bus connection for a moment, for example just after CLUSTER MEET. Then the message is lost, like a message in flight
 * when a bus connection breaks. */
static const char *fault_of_node(RedisModuleCtx *ctx, const char *node) {
    static char error[128];
    int flags = 0;
    if (!node || RedisModule_GetClusterNodeInfo(ctx, node, NULL, NULL, NULL, &flags) != REDISMODULE_OK)
        snprintf(error, sizeof error, "ERR unknown node: %.64s", node ? node : "all");
    else if (flags & (REDISMODULE_NODE_PFAIL | REDISMODULE_NODE_FAIL))
        snprintf(error, sizeof error, "ERR node %.64s is down: there is no link to it", node);
    else return NULL;
    return error;
}

static int is_on_this_host(const char *address, const char *own) {
    return !*address || !strncmp(address, "127.", 4) || !strcmp(address, "::1") || !strcmp(address, own);
}

/* Returns an error line if a node of the cluster is on another host. Then not all nodes can have the key of the source
 * KEY_USER. Asks the server at most once a second. In between, returns the last result. */
static const char *fault_of_hosts(RedisModuleCtx *ctx, const char *self) {
    static char error[320];
    static long long asked;
    long long now = RedisModule_Milliseconds();
    if (asked && now - asked < 1000 && now >= asked) return *error ? error : NULL;
    asked = now;
    *error = '\0';
    char own[NODE_IP] = "", address[NODE_IP] = "";
    int port;
    size_t count = 0;
    RedisModule_GetClusterNodeInfo(ctx, self, own, NULL, NULL, NULL);
    char **ids = RedisModule_GetClusterNodesList(ctx, &count);
    for (size_t i = 0; i < count && !*error; i++) {
        char id[ID + 1];
        snprintf(id, sizeof id, "%.*s", ID, ids[i]);
        *address = '\0';
        if (!strncmp(id, self, ID) ||
            RedisModule_GetClusterNodeInfo(ctx, id, address, NULL, &port, NULL) != REDISMODULE_OK ||
            is_on_this_host(address, own))
            continue;
        snprintf(error, sizeof error,
                 "ERR the servers of this cluster share no key: %.46s:%d is on another host. Write the same line of at "
                 "least 32 characters into a file on every host, and add the line `qa.bus-key-file FILE` to the "
                 "configuration of every server",
                 address, port);
    }
    if (ids) RedisModule_FreeClusterNodesList(ids);
    return *error ? error : NULL;
}

/* Returns NULL, or an error line if the other servers cannot have the key of this server. */
static const char *fault_of_key(RedisModuleCtx *ctx, const char *self) {
    KeySource source = bus_key_source();
    if (source == KEY_USER) return fault_of_hosts(ctx, self);
    if (source != KEY_NONE && source != KEY_SERVER) return NULL;
    return "ERR the servers of this cluster share no key, so they accept no messages from each other. Write the same "
           "line of at least 32 characters into a file on every host, and add the line `qa.bus-key-file FILE` to the "
           "configuration of every server";
}

const char *bus_send(RedisModuleCtx *ctx, const char *node, uint8_t kind, const char *payload, size_t length) {
    const char *self = RedisModule_GetMyClusterID();
    if (!self) return "ERR this server is not part of a cluster";
    uint8_t key[BUS_KEY_BYTES];
    const char *fault = fault_of_key(ctx, self);
    if (fault || !bus_key(0, key)) return fault;
    size_t size = PAYLOAD_AT + length;
    uint8_t *message = RedisModule_Alloc(size);
    memcpy(message, MARK, sizeof MARK - 1);
    message[sizeof MARK - 1] = kind;
    put_u64(message + SEQUENCE_AT, next_sequence());
    memcpy(message + PAYLOAD_AT, payload, length);
    sign(message + TAG_AT, key, message, size, self, node);
    explicit_bzero(key, sizeof key);
    int sent = RedisModule_SendClusterMessage(ctx, node, kind, (const char *)message, (uint32_t)size);
    RedisModule_Free(message);
    if (sent != REDISMODULE_OK) return fault_of_node(ctx, node);
    counts.sent++;
    return NULL;
}

/* ---- Checking ---- */

static Sender *sender_of(const char *id) {
    for (size_t i = 0; i < sender_count; i++)
        if (!memcmp(senders[i].id, id, ID)) return &senders[i];
    return NULL;
}

/* Stores the last sequence of a sender. If the table is full, the new sender replaces the sender with the oldest last
 * message. If the last message of the replaced sender is outside the window, its messages cannot be replayed. */
static void remember(const char *id, uint64_t sequence) {
    Sender *sender = sender_of(id);
    if (!sender && sender_count < MAX_SENDERS) {
        senders = RedisModule_Realloc(senders, (sender_count + 1) * sizeof *senders);
        sender = &senders[sender_count++];
    } else if (!sender) {
        sender = senders;
        for (size_t i = 1; i < sender_count; i++)
            if (senders[i].sequence < sender->sequence) sender = &senders[i];
    }
    memcpy(sender->id, id, ID);
    sender->sequence = sequence;
}

static int is_signed(const uint8_t *message, size_t length, const char *sender) {
    const char *self = RedisModule_GetMyClusterID();
    uint8_t tag[TAG_BYTES];
    uint8_t key[BUS_KEY_BYTES];
    int found = 0;
    for (int i = 0; self && !found && bus_key(i, key); i++) {
        sign(tag, key, message, length, sender, self);
        found = blake2b_equal(tag, message + TAG_AT, TAG_BYTES);
        if (found) break;
        sign(tag, key, message, length, sender, NULL);
        found = blake2b_equal(tag, message + TAG_AT, TAG_BYTES);
    }
    explicit_bzero(key, sizeof key);
    return found;
}

/* Returns NULL, or the reason to refuse the message. `sender` is a node id, and `kind` is the kind of message that the
 * caller expects. */
static const char *fault_of(const uint8_t *message, size_t length, const char *sender, uint8_t kind) {
    if (length < PAYLOAD_AT || memcmp(message, MARK, sizeof MARK - 1) || message[sizeof MARK - 1] != kind)
        return "it is not signed";
    if (bus_key_source() == KEY_NONE) return "this server has no key: set qa.bus-key-file";
    if (!is_signed(message, length, sender)) return "it is signed with a different key";
    uint64_t sequence = get_u64(message + SEQUENCE_AT);
    const Sender *known = sender_of(sender);
    if (known && sequence <= known->sequence) return "it was sent before, or its sender's clock was set back";
    if (llabs((long long)(sequence - microseconds())) > WINDOW_US)
        return "it is more than two minutes away from this server's clock";
    return NULL;
}

static void on_message(RedisModuleCtx *ctx, const char *sender, uint8_t kind, const unsigned char *message,
                       uint32_t length) {
    const char *fault = fault_of(message, length, sender, kind);
    if (fault) {
        char detail[160];
        snprintf(detail, sizeof detail, "%.*s was dropped: %s", ID, sender, fault);
        counts.refused++;
        bus_complain("a message of node %s", detail);
        return;
    }
    remember(sender, get_u64(message + SEQUENCE_AT));
    counts.received++;
    receivers[kind](ctx, sender, (const char *)message + PAYLOAD_AT, length - PAYLOAD_AT);
}

void bus_receive(RedisModuleCtx *ctx, uint8_t kind, BusReceiver receiver) {
    receivers[kind] = receiver;
    RedisModule_RegisterClusterMessageReceiver(ctx, kind, on_message);
}

BusInfo bus_info(void) {
    counts.key = bus_key_source_name();
    return counts;
}

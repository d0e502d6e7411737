/* The bus delivers messages of every node that has met the cluster, and meeting needs no password. Messages between
 * workers contain code. So a message counts only if it is signed with the cluster's key.
 *
 * THE KEY is a line of the file `qa.bus-key-file`. Without this setting it is derived from `masterauth`, else from
 * `requirepass`, which the servers of a cluster share. Without any of them there are no messages between servers. The
 * first key of the file signs; all keys of the file are accepted. To change the key, add the new key as the second line
 * of the file on every server, then make it the first line on every server, then remove the old line. The module reads
 * the file and the passwords again once a second.
 *
 * A MESSAGE is the mark, the kind (u8), the sequence (u64, little-endian), the tag (32 bytes) and the payload. The tag
 * is keyed BLAKE2b-256 over all other fields and over the ids of sender and receiver (zeros: all receivers). So a
 * message cannot be redirected to another receiver or come from another sender.
 *
 * REPLAY. The sequence is the sender's clock in microseconds, and grows with every message. A receiver accepts only
 * messages above the last sequence of that sender and within WINDOW of its own clock. The window protects against
 * senders of which the receiver knows no sequence yet. The bus keeps the messages of a sender in order. */
#include "server/bus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "server/blake2b.h"
#include "server/config.h"
#include "server/server.h"

#define MARK "qab1"
#define WINDOW_US (120LL * 1000000)
#define REFRESH_MS 1000
#define COMPLAIN_MS 60000

enum {
    KEY_BYTES = 32,
    TAG_BYTES = 32,
    MAX_KEYS = 4,
    MIN_KEY_TEXT = 32,
    MAX_FILE = 4096,
    MAX_SENDERS = 4096,
    MAX_KINDS = 8,
    ID = REDISMODULE_NODE_ID_LEN,
    SEQUENCE_AT = sizeof MARK,
    TAG_AT = SEQUENCE_AT + 8,
    PAYLOAD_AT = TAG_AT + TAG_BYTES,
};

typedef enum { NO_KEY, FROM_FILE, FROM_PASSWORD } KeySource;

static struct {
    uint8_t keys[MAX_KEYS][KEY_BYTES];
    int count;
    KeySource source;
    long long looked, complained;
    struct timespec modified;
    long long size, inode;
} ring;

typedef struct Sender {
    char id[ID];
    uint64_t sequence;
} Sender;

static Sender *senders;
static size_t sender_count;
static BusReceiver receivers[MAX_KINDS];
static BusInfo counts;

/* ---- Keys ---- */

static void make_key(uint8_t *key, const char *purpose, const char *text, size_t length) {
    Blake2b hash;
    blake2b_begin(&hash, KEY_BYTES, purpose, strlen(purpose));
    blake2b_add(&hash, text, length);
    blake2b_end(&hash, key);
}

/* At most one line a minute: a foreign node must not fill the log. */
static void complain(const char *format, const char *detail) {
    long long now = RedisModule_Milliseconds();
    if (ring.complained && now - ring.complained < COMPLAIN_MS) return;
    ring.complained = now;
    RedisModule_Log(server_ctx(), "warning", format, detail);
}

/* Reads the keys of the file. 0: the file cannot be read or has no key that is long enough; then nothing changes. */
static int read_file(const char *path) {
    char text[MAX_FILE + 1];
    uint8_t keys[MAX_KEYS][KEY_BYTES];
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t length = fread(text, 1, MAX_FILE, file);
    fclose(file);
    text[length] = '\0';
    int count = 0;
    char *rest = text;
    for (char *line; count < MAX_KEYS && (line = strsep(&rest, "\n"));) {
        size_t words = strcspn(line, " \t\r");
        if (words < MIN_KEY_TEXT) continue;
        make_key(keys[count++], "qa-cluster bus key, from a file", line, words);
    }
    if (count) {
        memcpy(ring.keys, keys, (size_t)count * KEY_BYTES);
        ring.count = count;
        ring.source = FROM_FILE;
    }
    memset(text, 0, sizeof text);
    memset(keys, 0, sizeof keys);
    return count > 0;
}

static void look_at_file(void) {
    struct stat status;
    int there = !stat(config.bus_key_file, &status);
    if (there && ring.source == FROM_FILE && status.st_size == ring.size && (long long)status.st_ino == ring.inode &&
        !memcmp(&status.st_mtim, &ring.modified, sizeof ring.modified))
        return;
    if (there && read_file(config.bus_key_file)) {
        ring.size = status.st_size;
        ring.inode = (long long)status.st_ino;
        ring.modified = status.st_mtim;
        return;
    }
    /* The last keys stay valid while the file is being replaced. */
    complain("qa.bus-key-file %s cannot be read, or has no line of at least 32 characters without blanks: messages of "
             "servers with another key are refused",
             config.bus_key_file);
}

static void read_passwords(RedisModuleCtx *ctx) {
    static const char *const NAMES[] = {"masterauth", "requirepass"};
    ring.count = 0;
    ring.source = NO_KEY;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !ring.count; i++) {
        size_t length;
        RedisModuleString *value = server_setting(ctx, NAMES[i]);
        const char *text = RedisModule_StringPtrLen(value, &length);
        if (length) {
            make_key(ring.keys[0], "qa-cluster bus key, from a password", text, length);
            ring.count = 1;
            ring.source = FROM_PASSWORD;
        }
        RedisModule_FreeString(NULL, value);
    }
}

static void refresh_keys(RedisModuleCtx *ctx) {
    long long now = RedisModule_Milliseconds();
    if (ring.looked && now - ring.looked < REFRESH_MS && now >= ring.looked) return;
    ring.looked = now;
    if (*config.bus_key_file) look_at_file();
    else read_passwords(ctx);
}

int bus_secret(RedisModuleCtx *ctx, const char *purpose, uint8_t *secret) {
    refresh_keys(ctx);
    if (!ring.count) return 0;
    Blake2b hash;
    blake2b_begin(&hash, BUS_SECRET_BYTES, ring.keys[0], KEY_BYTES);
    blake2b_add(&hash, purpose, strlen(purpose));
    blake2b_end(&hash, secret);
    return 1;
}

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
    blake2b_begin(&hash, TAG_BYTES, key, KEY_BYTES);
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

/* Why the bus did not accept a message for a node. NULL: the node is known and has no link at this moment. Nodes that
 * have just met close their links; the message is then lost, like a message in flight when a link breaks. */
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

const char *bus_send(RedisModuleCtx *ctx, const char *node, uint8_t kind, const char *payload, size_t length) {
    const char *self = RedisModule_GetMyClusterID();
    if (!self) return "ERR this server is not part of a cluster";
    refresh_keys(ctx);
    if (!ring.count)
        return "ERR the servers of this cluster share no key, so they accept no messages from each other: set "
               "qa.bus-key-file, or a password (masterauth, requirepass), on all of them";
    size_t size = PAYLOAD_AT + length;
    uint8_t *message = RedisModule_Alloc(size);
    memcpy(message, MARK, sizeof MARK - 1);
    message[sizeof MARK - 1] = kind;
    put_u64(message + SEQUENCE_AT, next_sequence());
    memcpy(message + PAYLOAD_AT, payload, length);
    sign(message + TAG_AT, ring.keys[0], message, size, self, node);
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

/* A new sender replaces the sender whose last message is oldest: its messages are outside the window. */
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
    for (int i = 0; self && i < ring.count; i++) {
        sign(tag, ring.keys[i], message, length, sender, self);
        if (blake2b_equal(tag, message + TAG_AT, TAG_BYTES)) return 1;
        sign(tag, ring.keys[i], message, length, sender, NULL);
        if (blake2b_equal(tag, message + TAG_AT, TAG_BYTES)) return 1;
    }
    return 0;
}

/* NULL, or why the message is refused. */
static const char *fault_of(const uint8_t *message, size_t length, const char *sender, uint8_t kind) {
    if (length < PAYLOAD_AT || memcmp(message, MARK, sizeof MARK - 1) || message[sizeof MARK - 1] != kind)
        return "it is not signed";
    if (!ring.count) return "this server has no key: set qa.bus-key-file or a password";
    if (!is_signed(message, length, sender)) return "it is signed with another key";
    uint64_t sequence = get_u64(message + SEQUENCE_AT);
    const Sender *known = sender_of(sender);
    if (known && sequence <= known->sequence) return "it was sent before, or its sender's clock was set back";
    if (llabs((long long)(sequence - microseconds())) > WINDOW_US)
        return "it is more than two minutes away from this server's clock";
    return NULL;
}

static void on_message(RedisModuleCtx *ctx, const char *sender, uint8_t kind, const unsigned char *message,
                       uint32_t length) {
    refresh_keys(ctx);
    const char *fault = fault_of(message, length, sender, kind);
    if (fault) {
        char detail[160];
        snprintf(detail, sizeof detail, "%.*s was dropped: %s", ID, sender, fault);
        counts.refused++;
        complain("a message of node %s", detail);
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
    static const char *const NAMES[] = {"none", "file", "password"};
    refresh_keys(server_ctx());
    counts.key = NAMES[ring.source];
    return counts;
}

/* Writes the notes in two steps: it reads the hash when a text changes, and writes at the end of the command that has
 * changed the text.
 *
 * The notification runs for every command of the server, so it returns after the first bytes of other keys. It must not
 * write itself; AddPostNotificationJob writes afterwards, still in the same transaction.
 *
 * During a classic slot migration (SETSLOT, MIGRATE) the server without the hash refuses the write. After the migration
 * the worker reads all documents of the partition. */
#include "corpus/notes.h"

#include <errno.h>
#include <string.h>

#include "server/server.h"

NoteStats note_stats;

static const char TEXT[] = "paragraphs:";
static const char DEFAULT[] = "default";
enum { TEXT_LENGTH = sizeof TEXT - 1, MAX_COLLECTION = 64 };

static RedisModuleString *sum_field; /* the empty name */

/* A changed text, and its note before the change. */
typedef struct Change {
    RedisModuleString *hash, *field, *text;
    int by_script;
    long long before; /* of a script that may write the note itself */
} Change;

static void free_change(void *data) {
    Change *change = data;
    RedisModule_FreeString(NULL, change->hash);
    RedisModule_FreeString(NULL, change->field);
    RedisModule_FreeString(NULL, change->text);
    RedisModule_Free(change);
}

/* ---- The rule ---- */

static RedisModuleString *joined(const char *a, const char *b, size_t b_length, const char *c) {
    RedisModuleString *made = RedisModule_CreateString(NULL, a, strlen(a));
    RedisModule_StringAppendBuffer(NULL, made, b, b_length);
    RedisModule_StringAppendBuffer(NULL, made, c, strlen(c));
    return made;
}

static int has_brace(const char *text, size_t length) { return memchr(text, '{', length) || memchr(text, '}', length); }

/* Where the `:{tag}` at the end of a document's key starts; NULL: it is not such a key. */
static const char *find_tag(const char *key, size_t length) {
    if (length < TEXT_LENGTH + 4 || key[length - 1] != '}') return NULL;
    const char *opening = memchr(key, '{', length), *end = key + length - 1;
    if (!opening || opening + 1 >= end || opening <= key + TEXT_LENGTH || opening[-1] != ':') return NULL;
    if (has_brace(opening + 1, (size_t)(end - opening - 1)) || memchr(key, '}', (size_t)(opening - key))) return NULL;
    return opening - 1;
}

/* The length of the UTF-8 sequence at `text`; 0: it is invalid. */
static size_t sequence(const unsigned char *text, size_t length) {
    unsigned char first = text[0];
    size_t size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (size > length) return 0;
    for (size_t i = 1; i < size; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    /* too long, a surrogate, or above the last code point */
    if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] > 0x9F)) return 0;
    if ((first == 0xF0 && text[1] < 0x90) || (first == 0xF4 && text[1] > 0x8F)) return 0;
    return size;
}

static int is_utf8(const char *text, size_t length) {
    size_t size = 0;
    for (size_t at = 0; at < length; at += size) {
        size = sequence((const unsigned char *)text + at, length - at);
        if (!size) return 0;
    }
    return 1;
}

static int is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

/* The name of a collection before the id of a document. The default collection has no name here. */
static int is_collection(const char *name, size_t length) {
    if (!length || length > MAX_COLLECTION || !is_letter_or_digit(name[0])) return 0;
    for (size_t i = 1; i < length; i++)
        if (!is_letter_or_digit(name[i]) && name[i] != '_' && name[i] != '-') return 0;
    return length != sizeof DEFAULT - 1 || memcmp(name, DEFAULT, length) != 0;
}

/* 1: `text` identifies a document in keys: its encoded id, alone or after `<collection>%/`. */
static int is_name(const char *name, size_t length) {
    const char *end = name + length, *percent = memchr(name, '%', length);
    if (percent && end - percent > 1 && percent[1] == '/') {
        if (!is_collection(name, (size_t)(percent - name))) return 0;
        percent = memchr(percent + 2, '%', (size_t)(end - percent - 2));
    }
    for (; percent; percent = memchr(percent + 3, '%', (size_t)(end - percent - 3))) {
        if (end - percent < 3) return 0;
        if (memcmp(percent, "%25", 3) != 0 && memcmp(percent, "%7B", 3) != 0 && memcmp(percent, "%7D", 3) != 0)
            return 0;
    }
    return 1;
}

/* NULL: it is not the text of a document. */
static Change *new_change(RedisModuleString *text) {
    size_t length;
    const char *key = RedisModule_StringPtrLen(text, &length);
    const char *end = find_tag(key, length), *name = key + TEXT_LENGTH;
    if (!end || end == name || !is_name(name, (size_t)(end - name)) || !is_utf8(key, length)) return NULL;
    Change *change = RedisModule_Calloc(1, sizeof *change);
    change->hash = joined("pending", end, length - (size_t)(end - key), "");
    change->field = RedisModule_CreateString(NULL, name, (size_t)(end - name));
    change->text = RedisModule_HoldString(NULL, text);
    return change;
}

/* ---- The note ---- */

/* Like keyspace_peek: it signals no miss. */
static RedisModuleKey *open_key(RedisModuleCtx *ctx, RedisModuleString *name) {
    return RedisModule_OpenKey(ctx, name, REDISMODULE_READ | REDISMODULE_WRITE | REDISMODULE_OPEN_KEY_NOTOUCH);
}

static int exists(RedisModuleCtx *ctx, RedisModuleString *name) {
    RedisModuleKey *key = open_key(ctx, name);
    int found = key && RedisModule_KeyType(key) != REDISMODULE_KEYTYPE_EMPTY;
    if (key) RedisModule_CloseKey(key);
    return found;
}

static int has_record(RedisModuleCtx *ctx, RedisModuleString *text) {
    size_t length;
    const char *key = RedisModule_StringPtrLen(text, &length);
    RedisModuleString *record = joined("document:", key + TEXT_LENGTH, length - TEXT_LENGTH, "");
    int found = exists(ctx, record);
    RedisModule_FreeString(NULL, record);
    return found;
}

static long long number(RedisModuleString *string) {
    long long value = 0;
    if (string && RedisModule_StringToLongLong(string, &value) != REDISMODULE_OK) value = 0;
    if (string) RedisModule_FreeString(NULL, string);
    return value;
}

/* The note of a change (0: there is no note) and the sum of all notes. 0: there is no hash. */
static int read_note(RedisModuleCtx *ctx, const Change *change, long long *seen, long long *sum) {
    RedisModuleKey *key = open_key(ctx, change->hash);
    RedisModuleString *own = NULL, *all = NULL;
    int found = key && RedisModule_KeyType(key) == REDISMODULE_KEYTYPE_HASH;
    if (found) RedisModule_HashGet(key, REDISMODULE_HASH_NONE, change->field, &own, sum_field, &all, NULL);
    if (key) RedisModule_CloseKey(key);
    *seen = number(own);
    *sum = number(all);
    return found;
}

/* If the hash exists, it can be written in any state of its slot; this takes half the time of a command. Otherwise this
 * function creates the hash. */
static void write_here(RedisModuleCtx *ctx, const Change *change, long long count, long long sum) {
    RedisModuleString *own = RedisModule_CreateStringFromLongLong(NULL, count);
    RedisModuleString *all = RedisModule_CreateStringFromLongLong(NULL, sum);
    RedisModuleKey *key = open_key(ctx, change->hash);
    RedisModule_HashSet(key, REDISMODULE_HASH_NONE, change->field, own, sum_field, all, NULL);
    RedisModule_CloseKey(key);
    RedisModule_SignalModifiedKey(ctx, change->hash);
    RedisModule_Replicate(ctx, "HSET", "sssss", change->hash, change->field, own, sum_field, all);
    RedisModule_FreeString(NULL, own);
    RedisModule_FreeString(NULL, all);
    note_stats.made++;
}

/* The server refuses the command if another shard has the slot, or if the hash may have moved there. 0: it refuses all
 * commands, because the cluster is down. Texts still expire and are still evicted then. */
static int write_new(RedisModuleCtx *ctx, const Change *change) {
    errno = 0;
    RedisModuleCallReply *reply = RedisModule_Call(ctx, "HSET", "!sslsl", change->hash, change->field, 1LL, sum_field,
                                                   1LL);
    if (!reply && (errno == ENETDOWN || errno == EROFS) && !exists(ctx, change->hash)) return 0;
    if (reply && RedisModule_CallReplyType(reply) != REDISMODULE_REPLY_ERROR) note_stats.made++;
    else note_stats.refused++;
    if (reply) RedisModule_FreeCallReply(reply);
    return 1;
}

static void note(RedisModuleCtx *ctx, void *data) {
    const Change *change = data;
    long long now, sum;
    int found = read_note(ctx, change, &now, &sum);
    if (change->by_script && now != change->before) return;
    /* removed with its record, by our script, or never a document: nothing to do */
    if (!now && !exists(ctx, change->text) && !has_record(ctx, change->text)) return;
    if (found || !write_new(ctx, change)) write_here(ctx, change, now + 1, sum + 1);
}

static int on_change(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    (void)type;
    (void)event;
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (length < TEXT_LENGTH || memcmp(text, TEXT, TEXT_LENGTH) != 0) return REDISMODULE_OK;
    if (RedisModule_GetSelectedDb(ctx) != 0 || !server_is_active_primary(ctx)) return REDISMODULE_OK;
    if (server_is_importing(ctx)) return REDISMODULE_OK; /* the notes of the source shard arrive too */
    Change *change = new_change(key);
    if (!change) return REDISMODULE_OK;
    long long sum;
    change->by_script = (RedisModule_GetContextFlags(ctx) & REDISMODULE_CTX_FLAGS_LUA) != 0;
    if (change->by_script) read_note(ctx, change, &change->before, &sum);
    if (RedisModule_AddPostNotificationJob(ctx, note, change, free_change) == REDISMODULE_OK) return REDISMODULE_OK;
    note_stats.refused++;
    free_change(change);
    return REDISMODULE_OK;
}

int notes_on_load(RedisModuleCtx *ctx) {
    sum_field = RedisModule_CreateString(NULL, "", 0);
    note_stats.noting = RedisModule_AddPostNotificationJob != NULL;
    return note_stats.noting ? RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_ALL, on_change)
                             : REDISMODULE_OK;
}

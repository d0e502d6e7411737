/* The module writes a note in two steps. A note is a number in a field of a hash (notes.h). When a text changes, the
 * server calls on_change, which queues the change with RedisModule_AddPostNotificationJob. At the end of the command or
 * script, the server calls note, which increments the note in the same transaction. Two steps are necessary, because a
 * module must not write keys during a keyspace notification.
 *
 * The server calls on_change for every keyspace event. If the key is not a text, on_change returns after it has
 * compared the first bytes of the key.
 *
 * During a classic slot migration (SETSLOT, MIGRATE), the server refuses the write on the shard that does not have the
 * hash. After the migration, the worker reads all documents of the partition. */
#include "corpus/notes.h"

#include <errno.h>
#include <string.h>

#include "corpus/text_key.h"
#include "server/server.h"

NoteStats note_stats;

static RedisModuleString *sum_field; /* the name of the field with the sum of all notes: empty (notes.h) */

/* A changed text, and its note before the change. */
typedef struct Change {
    RedisModuleString *hash, *field, *text;
    int by_script;
    long long before; /* if a script has changed the text: the note at the time of the change */
} Change;

static void free_change(void *data) {
    Change *change = data;
    RedisModule_FreeString(NULL, change->hash);
    RedisModule_FreeString(NULL, change->field);
    RedisModule_FreeString(NULL, change->text);
    RedisModule_Free(change);
}

/* Returns the change of a text. NULL: the key is not the text of a document. */
static Change *new_change(RedisModuleString *text) {
    TextKey key;
    if (!text_key_parse(text, &key)) return NULL;
    Change *change = RedisModule_Calloc(1, sizeof *change);
    change->hash = text_key_joined("pending:", NULL, 0, key.tag, key.tag_length);
    change->field = RedisModule_CreateString(NULL, key.name, key.name_length);
    change->text = RedisModule_HoldString(NULL, text);
    return change;
}

/* ---- The note ---- */

/* Opens a key for reading and writing. If the key is missing, the server sends no keymiss event. */
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
    TextKey key;
    if (!text_key_parse(text, &key)) return 0;
    RedisModuleString *record = text_key_joined("document:", key.name, key.name_length, key.tag - 1,
                                                key.tag_length + 1);
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

/* Sets *seen to the note of the changed text (0: there is no note), and *sum to the sum of all notes in the hash.
 * Returns 1 if the hash exists, otherwise 0. */
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

/* Writes the note without a command, in half the time of a command. `count` is the new note, and `sum` is the new sum
 * of all notes in the hash. If the hash exists, this is allowed in any state of the hash's slot. If the hash is
 * missing, this function creates the hash. A caller must then try write_new first, and call this function only if
 * write_new returns 0. */
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

static void free_reply(RedisModuleCallReply *reply) {
    if (reply) RedisModule_FreeCallReply(reply);
}

/* Removes the key `pending:{tag}` if its value has a wrong type. After the removal, the worker does not know the
 * pending documents of the partition. So the function also removes the partition's mark, the field `layout` of
 * `layout:{tag}`. Without the mark, the worker's next sweep scans all documents of the partition
 * (gears/functions/indexing/marks.py). */
static void discard_damaged(RedisModuleCtx *ctx, const Change *change) {
    size_t length;
    const char *name = RedisModule_StringPtrLen(change->hash, &length), *tag = memchr(name, '{', length);
    RedisModuleString *layout = text_key_joined("layout:", tag, length - (size_t)(tag - name), NULL, 0);
    RedisModule_Log(ctx, "warning", "removed the key %s: its value had a wrong type", name);
    free_reply(RedisModule_Call(ctx, "UNLINK", "!s", change->hash));
    free_reply(RedisModule_Call(ctx, "HDEL", "!sc", layout, "layout"));
    RedisModule_FreeString(NULL, layout);
}

static RedisModuleCallReply *call_new(RedisModuleCtx *ctx, const Change *change) {
    return RedisModule_Call(ctx, "HSET", "!sslsl", change->hash, change->field, 1LL, sum_field, 1LL);
}

/* Writes the first note of a partition with a command, which creates the hash. Returns 1 if the note is written. Also
 * returns 1 if the server refuses this command, for example because another shard has the slot, or because the hash may
 * have moved to another shard. Then the note is not written, and the caller must not write it either. Returns 0 if the
 * server refuses all commands because the cluster is down. Then the caller must write the note with write_here. (Texts
 * expire and are evicted even if the cluster is down.) */
static int write_new(RedisModuleCtx *ctx, const Change *change) {
    errno = 0;
    RedisModuleCallReply *reply = call_new(ctx, change);
    if (!reply && (errno == ENETDOWN || errno == EROFS) && !exists(ctx, change->hash)) return 0;
    if (reply && RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ERROR && exists(ctx, change->hash)) {
        RedisModule_FreeCallReply(reply);
        discard_damaged(ctx, change);
        reply = call_new(ctx, change);
    }
    if (reply && RedisModule_CallReplyType(reply) != REDISMODULE_REPLY_ERROR) note_stats.made++;
    else note_stats.refused++;
    free_reply(reply);
    return 1;
}

static void note(RedisModuleCtx *ctx, void *data) {
    const Change *change = data;
    long long now, sum;
    int found = read_note(ctx, change, &now, &sum);
    if (change->by_script && now != change->before) return;
    /* Writes no note if qa-cluster's script has removed the text with its record, or if the text was never a document.
     */
    if (!now && !exists(ctx, change->text) && !has_record(ctx, change->text)) return;
    if (found || !write_new(ctx, change)) write_here(ctx, change, now + 1, sum + 1);
}

static int on_change(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    (void)type;
    (void)event;
    size_t length;
    const char *text = RedisModule_StringPtrLen(key, &length);
    if (!text_key_may_be(text, length)) return REDISMODULE_OK;
    if (RedisModule_GetSelectedDb(ctx) != 0 || !server_is_active_primary(ctx)) return REDISMODULE_OK;
    if (server_is_importing(ctx)) return REDISMODULE_OK; /* the source shard of a migrating slot sends its notes too */
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
